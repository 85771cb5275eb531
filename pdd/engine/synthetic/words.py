"""The words that the synthetic engine says, made from stems by regular inflection."""

from collections.abc import Iterator

_PLAIN = """
a about above after again all almost along already also always among an and any are around as at
away back be because began begin beginning been before behind being below best better between both
but by can could did do does done down each early either else enough even ever every far few first
for forever from further give given go gone good great had half has have he her here herself high
him himself his how however if in indeed inside instead into is it its itself just kept knew know
known last later least left less like little long lost low made many may me met might mine more
most much must my myself near never new next no nobody none nor not nothing now of off often old
on once one only onto or other our ours out outside over own past perhaps put quite rather really
right said same saw second seen several shall she should since so some something sometimes soon
still such sure taken than that the their them then there these they thing things this those
though three through thus to today together told tomorrow too took toward two under until up upon
us used usually very was we well went were what when where whether which while who whole whom
whose why will with within without would yes yesterday yet you your yours
"""
_VERBS = """
accept add agree allow announce answer appear apply argue arrange arrive ask attach attend avoid
balance bake believe belong boil borrow bounce breathe brush call care carry cause change charge
chase check cheer choose claim clean clear climb close collect comb compare complete confirm
connect consider contain continue cook correct count cover create cross cure dance decide deliver
depend describe design destroy develop discover divide doubt dream dress drift drop dry earn empty
encourage enjoy enter escape examine exchange excite exist expand expect explain explore extend
fail fasten fetch fill finish fix float flow fold follow force form gather glow grab greet guard
guess guide hammer handle happen harm hatch haul heal heat help hope hunt hurry imagine improve
include increase inform invent invite join joke judge jump kick kiss knock label land laugh launch
learn lift listen live load lock look love manage march mark match matter measure melt mend
mention milk mix moan move nail name need nod note notice obey object observe obtain offer open
order owe own pack paint park pass pause perform pick plant play please point polish pour practise
praise prefer prepare present press pretend prevent print produce promise protect provide pull
pump push question race rain raise reach receive record reduce reflect refuse regret relax release
rely remain remember remind remove repair repeat replace reply report request rescue rest return
reward roll row rush sail save search seem select serve settle shape share shelter shout sign
signal smell smile smoke sort sound spell spill stay steer stir store stretch study succeed
suggest supply support suppose surprise surround talk taste thank tie touch tour trace trade train
travel treat tremble trust try turn type unite use visit wait wake walk wander want warm warn wash
watch water wave weigh welcome whisper whistle wipe wish wonder work worry wrap yell
"""
_NOUNS = """
actor afternoon age air animal apple arm army artist aunt autumn baby bag ball bank barn basket
beach bean bear bed bee bell bench bird boat body bone book boot border bottle bowl box boy branch
bread bridge brother bucket builder building bush button cabin cake camera camp candle car castle
cat cave chain chair chapter cheese cherry chest child church circle city clerk clock cloud coast
coat coffee coin colour comet cook corner cottage country course cousin cow crowd crown cup
curtain daughter day desert desk dinner doctor dog door dragon drawer drum duck dust ear earth
east edge egg elbow end engine evening eye face factory farm farmer father feather fence field
finger fire fish flag flame floor flower fog forest fox friend fruit game garden gate girl glass
glove goat gold grain grape grass group guest guitar hall hand harbour hat head heart hill history
hole home honey horse hospital hotel hour house ice idea inch ink insect iron island jacket jar
jewel journey judge kettle key king kitchen knee knight ladder lake lamp lane language lawyer leg
lemon lesson letter library light line lion lip list machine map market meadow meal memory milk
mile mill minute mirror moment money monkey month moon morning mother mountain mouth museum music
name nation neck needle neighbour nest night north nose number ocean office oil orange orchard
oven owl page paper parent park path peach pear pen pencil people person piano picture piece pig
pilot pipe place plane planet plate player pocket poem poet pond porch price prince problem queen
question rabbit radio rain reason ring river road rock roof room root rope rose sack sailor salt
sand school sea season secret seed shadow sheep ship shirt shoe shop shore shoulder silver singer
sister skin sky sleeve snow soap sock soldier son song soup south spider spoon spring square
stable stage star station stone storm story street student sugar summer sun table tailor teacher
tent theatre thread throat thumb ticket tiger time toe tongue tool tower town toy track train tree
trick trip truck tunnel uncle valley vegetable village voice wagon wall watch water week west
wheel wind window wing winter wood word world writer yard year
"""
_ADJECTIVES = """
active ancient angry bitter blue bold brave brief bright broad broken brown busy calm careful
certain cheap clear clever cold common cool correct cruel curious dark dear deep dense different
dim distant dry dull eager easy empty equal exact fair famous fast fierce fine firm flat fond
foolish free fresh full gentle glad golden grand grateful gray green happy hard harsh heavy hidden
hollow honest huge humble hungry idle keen kind large lazy light likely lively lonely loose loud
lovely lucky mild narrow neat nervous noble noisy odd open pale patient perfect plain pleasant
polite poor popular proud public pure quick quiet rapid rare ready red rich rough round royal rude
sad safe secret sharp short silent silver simple slow small smooth soft solid sour special steady
steep strange strong sudden sweet swift tall tender thick thin tidy tiny tired tough useful usual
vast warm weak wet white wide wild wise wooden yellow young
"""
_PUNCTUATION = (",", ".", ",", ".", "!", "?", ";", ":")


def words() -> list[str]:
    """Some thousands of different words, in a fixed order."""
    made: dict[str, None] = {}
    for word in _PLAIN.split():
        made[word] = None
    for noun in _NOUNS.split():
        made.update(dict.fromkeys((noun, _with_s(noun))))
    for verb in _VERBS.split():
        made.update(dict.fromkeys((verb, _with_s(verb), _past(verb), _ing(verb))))
    for adjective in _ADJECTIVES.split():
        made.update(dict.fromkeys((adjective, _adverb(adjective))))
    return list(made)


def punctuation() -> tuple[str, ...]:
    """What may stand after a word, once each."""
    return tuple(dict.fromkeys(_PUNCTUATION))


def spellings() -> Iterator[str]:
    """Every form in which a word may come in a text: after a space or not, capital or not."""
    for word in words():
        for form in (word, word.capitalize()):
            yield " " + form
            yield form


def _with_s(word: str) -> str:
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return word + "es"
    return word + "s"


def _past(verb: str) -> str:
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ied"
    return _doubled(verb) + "ed"


def _ing(verb: str) -> str:
    if verb.endswith("ie"):
        return verb[:-2] + "ying"
    if verb.endswith("e") and not verb.endswith("ee"):
        return verb[:-1] + "ing"
    return _doubled(verb) + "ing"


def _doubled(verb: str) -> str:
    """``drop`` -> ``dropp``: one syllable that ends in consonant, vowel, consonant."""
    vowels = [letter in "aeiou" for letter in verb]
    short = len(verb) > 2 and vowels[-3:] == [False, True, False] and sum(vowels) == 1
    return verb + verb[-1] if short and verb[-1] not in "wxy" else verb


def _adverb(adjective: str) -> str:
    if adjective.endswith("y"):
        return adjective[:-1] + "ily"
    if adjective.endswith("le") and adjective[-3] not in "aeiou":
        return adjective[:-1] + "y"
    if adjective.endswith("ll"):
        return adjective + "y"
    return adjective + "ly"
