"""Word lists of the broad prompts, written for this recipe. No tenant workload's prompt is in them."""

from __future__ import annotations


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.replace("\n", " ").split(";") if part.strip())


TOPICS = _split("""
photosynthesis; plate tectonics; the water cycle; black holes; vaccines; the French Revolution; supply and demand;
inflation; the Roman Empire; electric cars; solar panels; wind power; nuclear fusion; the human heart; sleep; memory;
dreams; anxiety; friendship; leadership; time management; public speaking; job interviews; remote work; budgeting;
saving for retirement; credit scores; renting a flat; buying a house; gardening; composting; growing tomatoes; houseplants;
baking bread; making pasta; Thai food; Indian curries; coffee brewing; green tea; chocolate; cheese making; fermentation;
vegetarian cooking; meal planning; running; yoga; swimming; weight training; cycling; hiking; camping; rock climbing;
football tactics; chess openings; board games; video game design; film editing; jazz; classical music; learning the guitar;
the piano; watercolour painting; photography; poetry; short stories; novels; Shakespeare; Greek mythology; Norse mythology;
fairy tales; science fiction; detective fiction; the Renaissance; the Industrial Revolution; the Silk Road; ancient Egypt;
the Cold War; the moon landing; Mars exploration; telescopes; satellites; the solar system; comets; gravity; relativity;
quantum mechanics; thermodynamics; electricity; magnets; lasers; semiconductors; batteries; bridges; skyscrapers; trains;
aeroplanes; ships; submarines; maps; volcanoes; earthquakes; hurricanes; deserts; rainforests; coral reefs; whales; sharks;
penguins; bees; butterflies; ants; spiders; dogs; cats; horses; elephants; dinosaurs; evolution; genetics; DNA; cells;
bacteria; viruses; antibiotics; the immune system; nutrition; vitamins; diabetes; first aid; dental care; eyesight; hearing;
language learning; etymology; grammar; punctuation; essay writing; note taking; studying for exams; teaching children;
parenting toddlers; teenagers and phones; social media; online privacy; passwords; phishing; encryption; the internet;
search engines; email etiquette; spreadsheets; databases; operating systems; computer memory; compilers; version control;
unit testing; code review; web servers; caching; load balancing; machine learning; neural networks; decision trees;
recommendation systems; robotics; drones; 3D printing; virtual reality; blockchain; open source software; algorithms;
sorting; recursion; statistics; probability; averages; correlation; prime numbers; fractions; geometry; trigonometry;
calculus; logic puzzles; philosophy of mind; ethics; utilitarianism; stoicism; democracy; constitutions; courts; elections;
taxes; insurance; trade; entrepreneurship; marketing; branding; customer service; negotiation; project management; teamwork;
meetings; feedback; conflict at work; career changes; volunteering; charity; museums; libraries; architecture; fashion;
recycling; climate change; clean water; air quality; urban planning; public transport; cycling in cities; tourism; Japan;
Brazil; Kenya; Iceland; Canada; Italy; Morocco; New Zealand; mountains; rivers; lakes; islands; weather forecasts; seasons;
holidays; birthdays; weddings; moving house; home repairs; painting a room; plumbing; carpentry; sewing; knitting; origami;
magic tricks; stand-up comedy; theatre; opera; ballet; street art; sculpture; pottery; antiques; stamps; bird watching;
fishing; beekeeping; astronomy for beginners; star signs; coincidences; happiness; gratitude; habits; procrastination; focus;
""")

AUDIENCES = _split("""
a ten-year-old; a complete beginner; a busy manager; a college student; an expert in another field; my grandmother; a
curious teenager; a new employee; a tourist; a teacher preparing a lesson; a journalist; an engineer; a nurse; a small
business owner; someone who is sceptical; a group of friends; a job applicant; a retired couple; a software developer; a parent
""")

ASKS = _split("""
Explain {t}.; Explain {t} to {a}.; What should {a} know about {t}?; Write a short introduction to {t}.; Give me five facts
about {t}.; List the main advantages and disadvantages of {t}.; What are common misconceptions about {t}?; Summarise the most
important ideas about {t} in three sentences.; Write a short story that involves {t}.; Write a poem about {t}.; Give me a
step-by-step guide to {t} for {a}.; Compare {t} and {u}.; How is {t} related to {u}?; What would change if {t} did not exist?;
Write a dialogue in which two people discuss {t}.; Write an email to a colleague about {t}.; Write a blog post about {t} for
{a}.; What questions should I ask about {t}?; Make a quiz with four questions about {t}, with answers.; Tell me the history of
{t}.; Why does {t} matter today?; Write a product description connected with {t}.; Suggest a one-week plan for getting started
with {t}.; What are the biggest challenges in {t}?; Give an example that makes {t} easy to understand.; Define {t} and give
three examples.; Write a tweet, a headline and a paragraph about {t}.; Argue for and against {t}.; What tools or materials do I
need for {t}?; Write a letter from {a} about {t}.; Make a table in Markdown comparing {t} and {u}.; Make a bulleted list of
tips about {t} for {a}.; Write a speech of one minute about {t}.; Describe {t} using an analogy with {u}.; What mistakes do
people make with {t}, and how can {a} avoid them?; Recommend three ways to learn more about {t}.; Rewrite this more formally:
"{a} told me that {t} is kind of a big deal, but I don't really get it."; Is {t} more important than {u}? Give reasons.; Write
an outline for a presentation about {t}.; Create a short glossary of terms used in {t}.; Write a review of a book about {t}.;
How do people measure or evaluate {t}?; Imagine you are {a}. Describe a day that involves {t}.; Plan a workshop about {t} for
{a}.; Translate the idea of {t} into plain words.; What does the future of {t} look like?; Write a news report about {t}.;
Classify these as related to {t} or to {u}: cost, speed, safety, beauty, age.; Give me ideas for a project about {t}.;
Fill in the blanks and explain: {t} is ___ because ___.; Which numbers or statistics matter for {t}?; Write a conversation
between {a} and a shop assistant about {t}.; Correct the grammar: "{t} are a thing what many person likes".; Answer yes or no,
then explain: is {t} difficult?; Write a FAQ with five entries about {t}.; Write a short scene for the theatre about {t}.;
""")

FOLLOW_UPS = _split("""
Can you give an example?; Explain that more simply.; Make it shorter.; Now write it as a numbered list.; Why is that?; What
else should I know?; Can you say more about the last point?; Rewrite it for {a}.; How does this compare with {u}?; Are there any
exceptions?; What are the risks?; Give me three more.; Summarise your answer in one sentence.; Thanks! What should I do next?;
Is that always true?; Turn this into a short poem.; Which of these is the most important, and why?; Can you add a title?;
Add more detail.; What would an expert say?; Write a short conclusion.; Now explain {u} in the same way.; Show it as a table.;
""")

SYSTEMS = _split("""
You are a helpful assistant.; You are a concise assistant. Answer briefly.; You are a patient teacher.; You are a professional
writer.; You are an experienced software engineer.; You answer in clear, complete sentences.; You are a friendly expert.;
You are an assistant that gives structured answers with headings and lists.; You are a careful analyst. State your assumptions.
""")

CODE_ACTIONS = _split("""
returns the sum of the even numbers in a list; counts how often each word occurs in a string; reverses the words of a sentence;
checks whether a string is a palindrome; finds the second largest number in a list; removes duplicates from a list but keeps
order; merges two sorted lists; computes the nth Fibonacci number; checks whether a number is prime; flattens a nested list;
converts Celsius to Fahrenheit; groups a list of dictionaries by a key; finds the longest word in a text; rotates a list by k
places; computes the greatest common divisor; sorts a list of tuples by the second element; finds all pairs that add up to a
target; validates an email address with a simple rule; counts vowels in a string; transposes a matrix; multiplies two matrices;
computes the factorial of n; converts a Roman numeral to an integer; converts an integer to binary; checks balanced brackets;
implements binary search; implements bubble sort; implements quick sort; implements a stack; implements a queue with two stacks;
implements a linked list with append and remove; reads a CSV file and returns the average of a column; writes a list of
dictionaries to a JSON file; parses a date string; computes the median of a list; computes the standard deviation; generates all
permutations of a string; generates a random password; caches results with a decorator; measures the running time of a function;
retries a function up to three times; downloads several pages with threads; splits a list into chunks; zips two lists into a
dictionary; inverts a dictionary; finds the common elements of three lists; computes the running total of a list; finds the
missing number in a range; checks whether two strings are anagrams; compresses a string by counting repeats; draws a triangle of
stars; simulates rolling two dice; plays rock, paper, scissors; converts a number of seconds to hours, minutes and seconds;
computes compound interest; normalises a list of numbers to the range 0 to 1; finds the shortest path in a small graph; does a
breadth-first search; does a depth-first search; computes the edit distance of two strings; finds the intersection of two
sets of intervals; counts the lines of a file; renames all files in a folder; extracts all numbers from a string; formats a
table of rows as text; checks whether a year is a leap year; computes the day of the week; models a bank account with deposit
and withdraw; models a shopping cart with a total; models a library with books and borrowers; models a temperature sensor log;
""")

CODE_ASKS = _split("""
Write a Python function that {c}.; Write a Python function that {c}, with type hints and a docstring.; Write a Python function
that {c} and show how to call it.; Write Python code that {c}. Include two unit tests.; Complete this Python function:\\n\\n```python\\ndef solve(data):\\n    # {c}\\n```; In Python, write code that {c}, and explain it line by line.; Write a JavaScript function that {c}.;
Write a Java method that {c}.; Write a short program in C that {c}.; How would you write code that {c} efficiently? Show Python.;
Write a Python class or function that {c}. Handle invalid input by raising ValueError.; Review this idea and then write it in
Python: a function that {c}.; Write a one-line Python expression, if possible, that {c}.; Write a Bash script that {c}.;
Write the docstring and the body of a Python function that {c}.; Write pseudocode and then Python for a routine that {c}.;
""")

TABLES = _split("""
customers(id, name, city, joined_on); orders(id, customer_id, total, created_at); products(id, title, price, stock);
employees(id, name, department, salary, manager_id); students(id, name, grade, school); books(id, title, author, year);
flights(id, origin, destination, departs_at, price); payments(id, order_id, amount, method); visits(id, patient, doctor, day);
sensors(id, location, reading, taken_at); tickets(id, subject, status, priority, opened_at); songs(id, title, artist, plays);
""")

SQL_ASKS = _split("""
Given the table {s}, write a SQL query that counts the rows.; Given the table {s}, write a SQL query that returns the ten newest
rows.; Given the tables {s} and {r}, write a SQL query that joins them.; Given the table {s}, write a SQL query that groups by the
third column and shows the average of the fourth.; Write a CREATE TABLE statement for {s} with sensible types.; Write three INSERT
statements for {s}.; Given the table {s}, write a SQL query that finds duplicates in the second column.; Given the table {s},
write a SQL query with a window function that ranks rows.; Write an UPDATE statement for {s} that changes one column.; Explain how
you would index {s} for fast lookups, with SQL.; Given the tables {s} and {r}, find rows of the first without a match in the second.;
""")

ENTITIES = _split("""
a recipe with name, servings, ingredients and steps; a book with title, author, year and genres; a customer with name, email and
address; an event with title, date, place and guests; a product with name, price, colours and stock; a film with title, director,
year and cast; a city with country, population and landmarks; a to-do list with tasks, owners and due dates; a weather report
with place, temperature and conditions; a music playlist with name and songs; a car with make, model, year and features; a course
with title, lessons and teacher; a bank transaction with amount, currency and date; a football team with players and positions;
a planet with mass, moons and distance; a restaurant menu with sections and dishes; a pet with name, species and age; a user
profile with settings and permissions; a server configuration with host, port and limits; an invoice with lines and a total;
""")

JSON_ASKS = _split("""
Write a JSON object that describes {e}.; Give an example of {e} as JSON.; Write a JSON array with three examples of {e}.; Write a
JSON schema for {e}.; Convert this to JSON: {e}.; Write {e} as YAML.; Show {e} as JSON and explain each field.; Write a Python
dictionary for {e} and print it as JSON.; Reply only with JSON: {e}.; Write {e} as XML.; Write an HTTP request and a JSON response
of an API that returns {e}.; Extract the fields as JSON from this text: "Here is {e}, all made up but complete.";
""")

OPERATIONS = _split("""
book_table(restaurant: string, people: integer, time: string); set_alarm(time: string, label: string); send_message(to: string,
text: string); play_song(title: string, artist: string); add_event(title: string, date: string); turn_on_light(room: string,
brightness: integer); search_recipes(ingredient: string, max_minutes: integer); order_taxi(from: string, to: string);
translate_word(word: string, language: string); rename_file(old: string, new: string); draw_circle(x: number, y: number,
radius: number); water_plant(name: string, millilitres: integer); start_timer(minutes: integer); log_workout(kind: string,
minutes: integer); reserve_seat(train: string, window: boolean); print_label(text: string, copies: integer);
""")

CALL_ASKS = _split("""
You can call {o}. Write the call for a made-up request.; Here is a function: {o}. Give an example call as JSON with "name" and
"arguments".; Two functions exist: {o} and {p}. Which one would you use for a simple request, and with which arguments?; Describe in
plain words what {o} does, then call it.; Write documentation for {o} with a table of parameters.; Write a JSON description of the
function {o}, with a type and a description for each parameter.; Write a Python stub for {o} that checks its arguments.;
""")

NAMES = _split("Ana; Ben; Chloe; Dev; Ella; Femi; Greta; Hugo; Iris; Jonas; Kofi; Lena; Mona; Nils; Olga; Priya; Rosa; Sam; Tariq; Uma")
THINGS = _split("apples; pencils; stickers; marbles; tickets; cookies; stamps; cards; beads; coins; roses; shells; books; bottles")

SUMS = _split("""
{n} has {x} {g} and buys {y} more. Then {n} gives away {z}. How many {g} are left?; A box holds {x} {g}. How many {g} are in {y}
boxes?; {n} reads {x} pages a day. How many days does a book of {w} pages take?; A shop sells {g} at {x} cents each. {n} buys {y}
and pays with {w} cents. How much change is there?; {n} walks {x} km on each of {y} days and {z} km on one more day. How far in
all?; Share {w} {g} equally among {x} children. How many does each get, and how many remain?; A tank holds {w} litres and loses {x}
litres an hour. How much is left after {y} hours?; What is {x} + {y} * {z}?; What is {w} divided by {x}, with remainder?; A train
travels {x} km in {y} hours. What is its average speed?; {n} earns {x} dollars an hour and works {y} hours a week. How much is that
in {z} weeks?; The price of {g} rises from {x} to {w} dollars. What is the change in per cent?; {n} is {x} years old and {m} is {y}
years older. How old will they be together in {z} years?; Solve for a: {x}a + {y} = {w}.; A rectangle is {x} by {y}. What are its
area and perimeter?; {n} and {m} together have {w} {g}. {n} has {x} more than {m}. How many has each?;
""")

SUM_ENDINGS = _split("Show your work.; Think step by step.; Explain each step.; Give only the steps and the answer.; ; ; Write it as equations.")
