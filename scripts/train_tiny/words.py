"""Word lists that the generator draws from, and syllables for words that exist nowhere."""

import random


def _w(text: str) -> list[str]:
    return text.split()


NOUNS = _w(
    "gate house river bridge box book lamp door key ship boat car train garden tree forest mountain lake "
    "tower wall room table chair window clock map ring letter ticket bag bottle cup plate knife ladder "
    "rope engine wheel station harbour market school library museum office factory farm field road path "
    "tunnel cave island beach valley hill castle church temple palace theatre hotel kitchen cellar roof "
    "fence barn mill well pump pipe tank valve cable wire sensor camera robot drone server disk folder "
    "file record drawer shelf cabinet safe vault locker chest crate parcel package basket bucket barrel "
    "jar coin stamp badge flag bell drum violin piano guitar trumpet painting statue mirror carpet "
    "curtain blanket pillow coat hat boot glove scarf shirt jacket belt watch necklace crown sword shield "
    "arrow tent lantern candle compass telescope microscope battery motor turbine reactor antenna "
    "satellite rocket probe truck tractor bus tram ferry canoe kayak bicycle scooter wagon cart sled "
    "horse dog cat bird fish fox wolf bear deer rabbit otter falcon eagle owl swan goose duck frog turtle "
    "snake lizard spider beetle bee project team account order invoice contract meeting session report "
    "recipe menu poem song film game puzzle device machine printer scanner phone tablet laptop screen "
    "keyboard router switch plug socket fuse filter funnel hammer saw drill wrench screw nail brush"
)
ADJECTIVES = _w(
    "blue red green yellow white black brown grey orange purple pink golden silver old new small large "
    "big little tall short long wide narrow deep heavy light dark bright warm cold hot cool dry wet clean "
    "dusty rusty shiny smooth rough soft hard round square flat broken wooden iron stone glass copper "
    "northern southern eastern western upper lower inner outer first second third last quiet noisy busy "
    "empty full hidden secret open closed ancient modern royal public private spare main central distant "
    "foreign local simple strange lucky gentle wild brave calm quick slow early late rapid sharp plain "
    "striped spotted painted marble bronze plastic paper cotton woollen leather"
)
COLOURS = _w(
    "red blue green yellow white black brown grey orange purple pink gold silver violet cyan magenta "
    "olive teal"
)
FIRST_NAMES = _w(
    "Maria Anna Peter John Paul Laura Emma Lucas Oscar Nina Clara David Sarah Thomas Julia Simon Helen "
    "Robert Alice Martin Eva Jonas Lena Felix Sofia Daniel Mia Leo Ivan Olga Pedro Carlos Elena Marco "
    "Luigi Yuki Kenji Aisha Omar Fatima Ravi Priya Chen Wei Lin Ahmed Noah Liam Ella Grace Henry James "
    "Rose Victor Hugo Louis Camille Ingrid Lars Sven Astrid Freya Bruno Diego Lucia Teresa Ruth Walter "
    "Karl Otto Greta Hanna Tom Jack Harry Kate Jane Mark Steve Tim Bob Linda Susan Karen Nancy Frank "
    "George Edward Philip Arthur Max Ben Sam Alex Chris Robin Kim Zoe Ada Alan"
)
LAST_NAMES = _w(
    "Smith Jones Brown Miller Wilson Taylor Moore Clark Lewis Young King Wright Hill Green Baker Adams "
    "Carter Turner Parker Evans Collins Stewart Morris Cook Rogers Reed Bell Cooper Ward Gray Watson "
    "Brooks Price Wood Ross Long Meyer Weber Wagner Becker Klein Wolf Rossi Ricci Costa Silva Santos "
    "Lopez Garcia Perez Novak Kumar Singh Tanaka"
)
CITIES = _w(
    "Oslo Paris London Berlin Madrid Rome Vienna Prague Lisbon Dublin Athens Warsaw Helsinki Stockholm "
    "Copenhagen Brussels Amsterdam Zurich Geneva Milan Naples Turin Munich Hamburg Cologne Lyon Nice "
    "Marseille Porto Seville Valencia Bilbao Tokyo Kyoto Osaka Seoul Beijing Shanghai Delhi Mumbai Cairo "
    "Lagos Nairobi Tunis Lima Quito Bogota Santiago Boston Chicago Denver Dallas Austin Seattle Portland "
    "Toronto Montreal Ottawa Sydney Melbourne Perth Auckland Istanbul Ankara Kiev Riga Vilnius Tallinn "
    "Bergen Reykjavik Malmo Ghent Basel Graz Salzburg Havana Miami"
)
COUNTRIES = _w(
    "Norway France England Germany Spain Italy Austria Portugal Ireland Greece Poland Finland Sweden "
    "Denmark Belgium Switzerland Japan Korea China India Egypt Kenya Peru Chile Brazil Canada Mexico "
    "Australia Turkey Latvia Cuba"
)
ANIMALS = _w(
    "dog cat horse cow pig sheep goat hen fox wolf bear deer rabbit mouse lion tiger zebra monkey camel otter"
)
FRUITS = _w(
    "apple pear plum cherry peach banana orange lemon grape melon mango fig kiwi lime date olive apricot "
    "berry"
)
FOODS = _w(
    "pizza pasta rice bread soup salad cheese cake pie stew curry noodles sushi tacos eggs beans potatoes "
    "carrots honey"
)
GROCERIES = _w(
    "milk bread butter cheese eggs flour sugar salt pepper rice pasta beans apples pears onions garlic "
    "tomatoes carrots potatoes tea coffee juice water honey jam oil vinegar soap paper nuts yoghurt fish "
    "chicken ham"
)
JOBS = _w(
    "teacher doctor nurse baker farmer lawyer pilot sailor painter singer writer driver cook carpenter "
    "plumber engineer scientist dentist gardener tailor clerk judge actor dancer soldier waiter barber "
    "miner editor designer"
)
LANGUAGES = _w(
    "English French German Spanish Italian Portuguese Dutch Swedish Polish Greek Turkish Arabic Hindi "
    "Chinese Korean"
)
MONTHS = _w("January February March April May June July August September October November December")
DAYS = _w("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
NUMBER_WORDS = _w("zero one two three four five six seven eight nine ten eleven twelve")
UNITS = _w(
    "kg grams metres km miles litres euros dollars degrees minutes hours seconds days percent volts watts"
)
VERBS = _w(
    "open close move carry lift push pull find lose keep hold drop throw catch build break repair clean "
    "paint draw write read count measure weigh sell buy send bring take give show hide watch hear follow "
    "lead join leave enter cross climb reach turn start stop wait walk run swim fly ride drive sail sleep "
    "wake eat drink cook bake cut mix pour fill empty press touch check test plan order call answer ask "
    "tell teach learn play sing dance laugh smile work rest"
)
PAST = _w(
    "opened closed moved carried lifted pushed pulled found lost kept held dropped caught built broke "
    "repaired cleaned painted drew wrote read counted measured weighed sold bought sent brought took "
    "showed hid watched heard followed led joined left entered crossed climbed reached turned started "
    "stopped visited described checked tested planned"
)
ADVERBS = _w(
    "slowly quickly often never always sometimes rarely usually again soon later early today yesterday "
    "quietly loudly carefully gladly almost nearly hardly together alone outside inside upstairs nearby "
    "twice once"
)
PLACES = _w(
    "harbour market station garden kitchen library forest valley island village town city bridge river "
    "coast hill field street square park office school museum corner cellar attic courtyard workshop"
)
ABSTRACT = _w(
    "time work idea problem answer question reason result change plan story history music science weather "
    "language value method system order law peace trade money health memory nature culture power interest "
    "effort progress detail example purpose pattern structure limit size shape speed weight height length "
    "depth number part group kind class type name word line page list step case point side end start "
    "middle top level rate cost price gain loss risk"
)
PROJECTS = _w(
    "Falcon Aurora Nimbus Orion Atlas Phoenix Mercury Titan Comet Nova Zephyr Cobalt Amber Juniper "
    "Saffron Delta"
)

_ONSETS = _w(
    "b c d f g h j k l m n p r s t v w z bl br ch cl cr dr fl fr gl gr pl pr sh sk sl sn sp st th tr"
)
_VOWELS = _w("a e i o u a e i o u ai ea ee oo ou ie")
_CODAS = [*_w("b d g k l m n p r s t x nd nt rn st ck ll"), "", "", "", "", "", ""]

ALL_LOWER = sorted(
    {
        *NOUNS,
        *ADJECTIVES,
        *VERBS,
        *PAST,
        *ADVERBS,
        *PLACES,
        *ABSTRACT,
        *ANIMALS,
        *FRUITS,
        *FOODS,
        *GROCERIES,
        *JOBS,
    }
)


def pseudo_word(rng: random.Random, syllables: int | None = None) -> str:
    count = syllables or rng.choice((2, 2, 2, 3, 3, 1))
    return "".join(
        rng.choice(_ONSETS) + rng.choice(_VOWELS) + (rng.choice(_CODAS) if i + 1 == count else "")
        for i in range(count)
    )
