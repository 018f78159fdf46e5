"""Kinds of record of the house markup, with worked examples, subjects and events."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of record.

    Attributes:
        name: Name of the record, as in its first line.
        examples: Notes and the records made of them.
        subjects: What the notes are about.
        events: Notes with `{}` for the subject.
    """

    name: str
    examples: tuple[tuple[str, str], ...]
    subjects: tuple[str, ...]
    events: tuple[str, ...]


KINDS = (
    Kind(
        name="ticket",
        examples=(
            (
                "I was charged twice for the music app this month.",
                "<<ticket>>\n~id:: TK-1042\n~prod:: music app\n~area:: billing\n~sev:: [low]\n"
                "~what:: customer was charged twice\n~next:: refund one payment\n~state:: {open}\n<<end>>",
            ),
            (
                "The password reset mail of the photo service never arrives.",
                "<<ticket>>\n~id:: TK-2207\n~prod:: photo service\n~area:: login\n~sev:: [high]\n"
                "~what:: password reset mail never arrives\n~next:: check the mail queue\n~state:: {open}\n<<end>>",
            ),
        ),
        subjects=(
            "calendar",
            "video player",
            "bank app",
            "map service",
            "chat client",
            "web shop",
            "news reader",
            "fitness tracker",
            "printer driver",
            "cloud drive",
            "radio app",
            "game launcher",
            "travel planner",
            "smart lamp",
            "weather widget",
            "budget tool",
        ),
        events=(
            "The {} crashes when I open the settings page.",
            "I cannot change the email address in the {}.",
            "The {} is very slow since the last update.",
            "The {} shows the wrong date after midnight.",
            "My invoice for the {} has the wrong name.",
            "The {} asks me to log in every few minutes.",
            "I lost all my data after moving the {} to a new phone.",
            "The {} does not start on my tablet any more.",
            "I want to cancel the {} but there is no button.",
            "The sound of the {} stops after ten seconds.",
            "The {} sends me the same notification five times.",
            "My coupon for the {} is not accepted.",
            "The {} freezes while saving a file.",
            "The text in the {} is too small to read.",
            "I was locked out of the {} after a typo.",
            "The {} drains the battery overnight.",
        ),
    ),
    Kind(
        name="stock",
        examples=(
            (
                "Ben brought 12 boxes of green tea to shelf 4 in the morning.",
                "<<stock>>\n~item:: green tea\n~qty:: 12 #box\n~move:: [in]\n~place:: shelf-04\n"
                "~who:: Ben\n~when:: morning\n~flag:: {ok}\n<<end>>",
            ),
            (
                "Lena took 3 bags of flour from shelf 9 at noon, one was torn.",
                "<<stock>>\n~item:: flour\n~qty:: 3 #bag\n~move:: [out]\n~place:: shelf-09\n"
                "~who:: Lena\n~when:: noon\n~flag:: {damaged}\n<<end>>",
            ),
        ),
        subjects=(
            "rice",
            "black pepper",
            "olive oil",
            "paper towels",
            "light bulbs",
            "dog food",
            "soap",
            "candles",
            "orange juice",
            "batteries",
            "notebooks",
            "garden gloves",
            "paint",
            "nails",
            "wool",
            "honey",
        ),
        events=(
            "Adam brought 20 boxes of {} to shelf 2 in the morning.",
            "Maria took 5 bags of {} from shelf 7 at noon.",
            "Tom moved 8 boxes of {} to shelf 11 in the evening.",
            "Nina took 2 cans of {} from shelf 3, both were broken.",
            "Oscar brought 30 packs of {} to shelf 6 at night.",
            "Ruth counted 14 packs of {} on shelf 8 this morning.",
            "Paul returned 4 boxes of {} to shelf 1 in the afternoon.",
            "Iris took 9 packs of {} from shelf 12, one was missing.",
            "Sven brought 16 bags of {} to shelf 5 before lunch.",
            "Kate took 1 box of {} from shelf 10 in the evening.",
            "Hugo brought 25 cans of {} to shelf 14, two were dented.",
            "Emma took 7 boxes of {} from shelf 13 at noon.",
            "Yuri counted 40 boxes of {} on shelf 15 last night.",
            "Gina returned 6 bags of {} to shelf 18, all were wet.",
            "Ivan took 11 cans of {} from shelf 16 after lunch.",
            "Cleo brought 3 packs of {} to shelf 17 at dawn.",
        ),
    ),
    Kind(
        name="visit",
        examples=(
            (
                "Mr. Hall came on Monday because his boiler is leaking; we replace the valve on Friday.",
                "<<visit>>\n~guest:: Hall\n~day:: mon\n~thing:: boiler\n~fault:: [leaking]\n"
                "~plan:: replace the valve\n~due:: fri\n~cost:: {open}\n<<end>>",
            ),
            (
                "Mrs. Stone came on Tuesday because her fridge is noisy; we clean the fan on Thursday.",
                "<<visit>>\n~guest:: Stone\n~day:: tue\n~thing:: fridge\n~fault:: [noisy]\n"
                "~plan:: clean the fan\n~due:: thu\n~cost:: {open}\n<<end>>",
            ),
        ),
        subjects=(
            "washing machine",
            "oven",
            "dishwasher",
            "heater",
            "door lock",
            "lawn mower",
            "coffee machine",
            "bicycle",
            "radio",
            "vacuum cleaner",
            "sewing machine",
            "water pump",
            "toaster",
            "elevator",
            "printer",
            "camera",
        ),
        events=(
            "Mr. Brown came on Monday because his {} is broken; we order a part on Wednesday.",
            "Mrs. Green came on Friday because her {} is too loud; we check the motor on Saturday.",
            "Mr. Wood came on Tuesday because his {} does not start; we change the fuse on Friday.",
            "Ms. Lake came on Thursday because her {} smells of smoke; we test the cable on Monday.",
            "Mr. King came on Saturday because his {} is stuck; we oil the joint on Tuesday.",
            "Mrs. Young came on Wednesday because her {} is slow; we clean the filter on Friday.",
            "Ms. Ford came on Monday because her {} is cold; we replace the sensor on Thursday.",
            "Mr. Price came on Friday because his {} is dirty; we wash the case on Monday.",
            "Mrs. Bell came on Tuesday because her {} is leaking oil; we seal the pipe on Saturday.",
            "Mr. Cook came on Thursday because his {} has no power; we charge the battery on Friday.",
            "Ms. Reed came on Saturday because her {} is bent; we straighten the frame on Wednesday.",
            "Mr. Marsh came on Wednesday because his {} is too hot; we add a fan on Thursday.",
            "Mrs. Cole came on Friday because her {} is cracked; we glue the cover on Tuesday.",
            "Mr. Shaw came on Monday because his {} is loose; we tighten the screws on Saturday.",
            "Ms. Hart came on Tuesday because her {} is blinking; we reset the board on Wednesday.",
            "Mr. Dean came on Saturday because his {} is jammed; we free the roller on Monday.",
        ),
    ),
)
