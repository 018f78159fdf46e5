"""The Spanish genres: what a request lists, what its text looks like, and the subjects and circumstances."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Genre:
    """One kind of text.

    Attributes:
        name: Genre name.
        asked: Request with `{subject}` and numbered fields for the circumstance.
        written: The text that the examples show, with the same fields.
        subjects: What the texts are about.
        circumstances: The facts that the numbered fields take.
        shown: Subject and circumstance of each worked example; they occur nowhere else.
    """

    name: str
    asked: str
    written: str
    subjects: tuple[str, ...]
    circumstances: tuple[tuple[str, ...], ...]
    shown: tuple[tuple[str, tuple[str, ...]], ...]

    def request(self, subject: str, circumstance: tuple[str, ...]) -> str:
        """The user's message."""
        return self.asked.format(*circumstance, subject=subject)

    def examples(self) -> tuple[tuple[str, str], ...]:
        """Worked examples: request and text."""
        return tuple(
            (self.request(subject, facts), self.written.format(*facts, subject=subject))
            for subject, facts in self.shown
        )


GENRES = (
    Genre(
        name="tiempo",
        asked=(
            "Parte del tiempo. Ciudad: {subject}. Cielo: {0}. Máxima: {1}. Mínima: {2}. Viento: {3}. Consejo: {4}."
        ),
        written=(
            "Hoy en {subject} el cielo estará {0}. La temperatura máxima será de {1} grados y la mínima de {2} "
            "grados. El viento será {3}. Se recomienda {4}. Les deseamos un buen día en {subject}."
        ),
        subjects=(
            "Lima",
            "Valencia",
            "Bogotá",
            "Granada",
            "Quito",
            "Málaga",
            "Caracas",
            "Toledo",
            "Montevideo",
            "Burgos",
            "Asunción",
            "Cádiz",
            "Rosario",
            "Salamanca",
            "La Habana",
            "Murcia",
        ),
        circumstances=(
            ("nublado", "17", "11", "fuerte, del norte", "llevar paraguas"),
            ("cubierto", "12", "4", "moderado, del este", "llevar ropa de abrigo"),
            ("soleado", "27", "15", "suave, del sur", "pasear por el parque"),
            ("despejado", "31", "19", "ligero, del mar", "usar crema solar"),
            ("lluvioso", "14", "9", "fuerte, del oeste", "conducir con cuidado"),
            ("variable", "21", "13", "moderado, del norte", "llevar una chaqueta"),
            ("tormentoso", "24", "18", "muy fuerte, del sur", "quedarse en casa"),
            ("gris y frío", "6", "1", "helado, del norte", "abrigarse bien"),
            ("claro", "23", "12", "débil, del este", "abrir las ventanas"),
            ("con niebla", "10", "5", "casi nulo", "encender las luces"),
        ),
        shown=(
            ("Sevilla", ("limpio", "38", "22", "suave, del oeste", "beber agua")),
            ("Bilbao", ("con nubes", "16", "8", "fresco, del mar", "llevar botas")),
        ),
    ),
    Genre(
        name="aviso",
        asked="Aviso de transporte. Estación: {subject}. Causa: {0}. Duración: {1}. Alternativa: {2}.",
        written=(
            "Atención, viajeros. Por {0}, el servicio en la estación de {subject} queda interrumpido durante {1}. "
            "Como alternativa, ofrecemos {2}. Disculpen las molestias y gracias por su paciencia."
        ),
        subjects=(
            "Puerta Norte",
            "Plaza Mayor",
            "Los Olivos",
            "Río Verde",
            "El Puente",
            "Las Flores",
            "Mercado Central",
            "Campo Nuevo",
            "La Torre",
            "Universidad",
            "El Faro",
            "Santa Ana",
            "Los Pinos",
            "Jardines",
            "La Colina",
            "San Miguel",
        ),
        circumstances=(
            ("obras en el túnel", "tres horas", "un taxi compartido"),
            ("una avería eléctrica", "media hora", "la línea roja"),
            ("fuertes lluvias", "toda la tarde", "un tranvía especial"),
            ("falta de personal", "una hora", "la línea verde"),
            ("una huelga", "todo el día", "bicicletas públicas"),
            ("un árbol caído", "dos horas", "la línea azul"),
            ("limpieza de la estación", "veinte minutos", "la puerta sur"),
            ("una carrera popular", "toda la mañana", "el autobús nocturno"),
            ("revisión de las puertas", "diez minutos", "el ascensor central"),
            ("nieve en la vía", "cuatro horas", "un coche de alquiler"),
        ),
        shown=(
            ("Atocha", ("obras en la vía", "cinco horas", "un autobús gratuito")),
            ("El Carmen", ("un corte de luz", "quince minutos", "el tren de cercanías")),
        ),
    ),
    Genre(
        name="anuncio",
        asked="Anuncio. Producto: {subject}. Color: {0}. Precio: {1} euros. Tienda: {2}. Oferta: {3}.",
        written=(
            "Llega a {2} un nuevo producto: {subject} de color {0}. Cuesta solo {1} euros. Esta semana tenemos {3}. "
            "Venga hoy mismo a {2}; le esperamos con mucho gusto."
        ),
        subjects=(
            "mesa redonda",
            "lámpara de pie",
            "bolso de piel",
            "camisa de lino",
            "taza grande",
            "reloj de pared",
            "bicicleta plegable",
            "manta de lana",
            "mochila escolar",
            "cafetera italiana",
            "alfombra persa",
            "sombrero de paja",
            "guitarra clásica",
            "maleta ligera",
            "espejo antiguo",
            "cuaderno de dibujo",
        ),
        circumstances=(
            ("rojo", "30", "El Rincón", "dos por uno"),
            ("verde", "18", "La Esquina", "un regalo sorpresa"),
            ("blanco", "75", "Bazar Luna", "un descuento de diez euros"),
            ("negro", "120", "Almacenes Sol", "pago en tres meses"),
            ("amarillo", "9", "Tienda Marina", "una entrega en un día"),
            ("gris", "54", "Hogar Bonito", "una garantía de dos años"),
            ("marrón", "66", "Casa Rosa", "un vale de compra"),
            ("morado", "22", "El Molino", "una rebaja del veinte por ciento"),
            ("naranja", "15", "Plaza Moda", "un café gratis"),
            ("plateado", "88", "La Fábrica", "una devolución sin coste"),
        ),
        shown=(
            ("silla de madera", ("azul", "45", "Casa Norte", "el envío gratis")),
            ("abrigo de invierno", ("rosa", "60", "Moda Real", "un pañuelo de regalo")),
        ),
    ),
    Genre(
        name="correo",
        asked="Correo. Para: {subject}. Motivo: {0}. Día: {1}. Razón: {2}. Firma: {3}.",
        written=(
            "Buenos días, {subject}:\nLe escribo para {0} el {1}. La razón es {2}. Quedo a su disposición para "
            "cualquier pregunta.\nMuchas gracias por su atención.\nUn saludo cordial,\n{3}"
        ),
        subjects=(
            "señora Ruiz",
            "señor Ortega",
            "doctora Vega",
            "profesor Molina",
            "señora Castro",
            "señor Navarro",
            "directora Campos",
            "señor Iglesias",
            "señora Medina",
            "doctor Santos",
            "profesora Rivas",
            "señor Blanco",
            "señora Fuentes",
            "director Prieto",
            "señora Pascual",
            "señor Lozano",
        ),
        circumstances=(
            ("cambiar una cita", "lunes", "un viaje de trabajo", "Carlos Pérez"),
            ("pedir una reunión", "martes", "el nuevo proyecto", "Lucía Romero"),
            ("cancelar una reserva", "jueves", "una enfermedad", "Pedro Gil"),
            ("entregar el informe", "miércoles", "el fin del trimestre", "Marta Díaz"),
            ("visitar la oficina", "sábado", "la firma del contrato", "Jorge Luna"),
            ("recoger un paquete", "domingo", "un error en la dirección", "Elena Torres"),
            ("confirmar la clase", "lunes", "el examen de junio", "Raúl Serrano"),
            ("trabajar desde casa", "miércoles", "una obra en el edificio", "Sara Nieto"),
            ("reparar el ordenador", "jueves", "un fallo del disco", "Hugo Vidal"),
            ("ver el piso", "martes", "el anuncio de alquiler", "Nuria Sanz"),
        ),
        shown=(
            ("señora García", ("pedir un día libre", "viernes", "una cita con el médico", "Ana López")),
            ("señor Herrera", ("enviar la factura", "martes", "el cierre del mes", "Luis Mora")),
        ),
    ),
    Genre(
        name="agenda",
        asked="Agenda. Evento: {subject}. Lugar: {0}. Día: {1}. Hora: {2}. Entrada: {3}.",
        written=(
            "El {1} a las {2} se celebra el evento: {subject}, en {0}. La entrada cuesta {3} y se compra en la "
            "taquilla. Las puertas se abren media hora antes. Le esperamos en {0} el {1} a las {2}."
        ),
        subjects=(
            "feria del libro",
            "teatro para niños",
            "baile de flamenco",
            "mercado de flores",
            "cine de verano",
            "carrera solidaria",
            "taller de cerámica",
            "concurso de cocina",
            "exposición de fotos",
            "noche de poesía",
            "torneo de ajedrez",
            "festival de jazz",
            "visita guiada",
            "clase de yoga",
            "charla sobre el mar",
            "feria de quesos",
        ),
        circumstances=(
            ("el Parque Grande", "domingo", "diez", "dos euros"),
            ("la Sala Azul", "viernes", "nueve", "quince euros"),
            ("el Museo Nuevo", "jueves", "cinco", "seis euros"),
            ("la Casa de Cultura", "martes", "siete", "cuatro euros"),
            ("el Palacio Viejo", "lunes", "seis", "veinte euros"),
            ("la Biblioteca", "miércoles", "once", "un euro"),
            ("el Jardín Botánico", "domingo", "doce", "tres euros"),
            ("la Plaza de España", "viernes", "diez", "ocho euros"),
            ("el Club Náutico", "sábado", "cuatro", "diez euros"),
            ("la Escuela de Arte", "jueves", "tres", "cinco euros"),
        ),
        shown=(
            ("concierto de guitarra", ("el Teatro Real", "sábado", "ocho", "doce euros")),
            ("cata de vinos", ("la Bodega Antigua", "martes", "nueve", "treinta euros")),
        ),
    ),
)
