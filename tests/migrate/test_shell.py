"""Shell scripts are split into words: quotes, variables, arrays, branches, here-documents."""

from __future__ import annotations

import pytest

from neoxargs.base.files import Text
from neoxargs.base.problems import Problems
from neoxargs.migrate.shell.arithmetic import evaluate
from neoxargs.migrate.shell.script import read_script
from tests.support.refused import refused
from tests.support.snapshots import pinned


def words(text: str) -> list[list[str]]:
    return [[word.text for word in command] for command in read_script(Text("run.sh", text)).commands]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("a --b 1", [["a", "--b", "1"]]),
        ("a \\\n  --b 1 # why\nc", [["a", "--b", "1"], ["c"]]),
        ('a \'x  y\' "z \\" $"', [["a", "x  y", 'z " $']]),
        ('X="1 2"\na $X "$X" ${X}3', [["a", "1", "2", "1 2", "1", "23"]]),
        ("export X=1\nY=$X\na $Y${Y}", [["a", "11"]]),
        ('A=(--b 1 # one\n --c 2)\na ${A[@]} "${A[@]}"', [["a", *["--b", "1", "--c", "2"] * 2]]),
        ("A=(1)\nA+=(2)\na ${A[*]}", [["a", "1", "2"]]),
        ("X=${X:-4}\na $X ${Y-5}", [["a", "4", "5"]]),
        ('X=${1:-"c/a"}\na $X "${2:-"d e"}" ${3-\'f\'}g', [["a", "c/a", "d e", "fg"]]),
        ('X=c\na ${1:-"${X}/a"} ${2:-$X} "${3:-\'h\'}" ${X:-"i"}', [["a", "c/a", "c", "'h'", "c"]]),
        ('X=${1:-"0.3 a"}\nY=$X\na $Y', [["a", "0.3", "a"]]),
        (
            'A=(1 2)\nX=c\na ${1:-$X/a} $X "${A[@]}x" ${A[1]} ${A[@]}',
            [["a", "c/a", "c", "1", "2x", "${A[1]}", "1", "2"]],
        ),
        ('a ${1:-"open} b', [["a", "open", "b"]]),
        ("N=2\na $((N * 4 + 1)) $(($N/2))", [["a", "9", "1"]]),
        ("N=2\na $((300 / (2 * (N - 1)))) $((B * (2 * (N - 1))))", [["a", "150", "$((B * (2 * (N - 1))))"]]),
        (
            "N=-7\na $((-7 / 2)) $((7 / -2)) $((3 - N)) $((-(2 + 3) * N))",
            [["a", "-3", "-3", "10", "35"]],
        ),
        ("a $(date) `hostname` $1", [["a", "$(date)", "`hostname`", "$1"]]),
        ("a --b 2>&1 | tee log; c && d", [["a", "--b"], ["tee", "log"], ["c"], ["d"]]),
        ("a '' $NONE", [["a", "", "$NONE"]]),
        ('a --b 1 "$@" $* c$@', [["a", "--b", "1", "c"]]),
        (': "${X:=1}" ${Y:=b c}\na $X $Y ${X:-2}', [[":", "1", "b", "c"], ["a", "1", "b", "c", "1"]]),
        ("export -x A=(--b 1)\nreadonly N=2\na ${A[@]} $N", [["a", "--b", "1", "2"]]),
        ("C='a --b 1 &>> log'\neval $C\neval \"c && d $C\"", [["a", "--b", "1"], ["c"], ["d", "a", "--b", "1"]]),
        ("h 'cd x && a --b 1 --c 2'", [["h", "cd x && a --b 1 --c 2"], ["cd", "x"], ["a", "--b", "1", "--c", "2"]]),
        ("( cd x && a --b 1 )\nc", [["cd", "x"], ["a", "--b", "1"], ["c"]]),
        ("h 'a --b 1' '--c d'", [["h", "a --b 1", "--c d"]]),
        ("X=1\na ${X:+y} ${N:+y}z ${N:=2}", [["a", "y", "z", "2"]]),
        ('A=(1 2)\nC="run ${A[@]} $@"\neval $C', [["run", "1", "2"]]),
        ("a > log --b 2>> err", [["a", "--b"]]),
        ("a bash -c 'b --c 1'", [["a", "bash", "-c", "b --c 1"], ["b", "--c", "1"]]),
        ("if [ $X = 1 ]; then A=1; else A=2; fi\na $A", [["a", "$A"]]),
        ("X=2\nif [ $X = 1 ]\nthen\n A=1\nelif [[ $X -ge 2 && 1 == 1 ]]; then A=3\nelse A=2; fi\na $A", [["a", "3"]]),
        ('if [ -z "$X" ]; then X=4; fi\nif [ -n "$X" ] && [ ! $X -lt 3 ]; then a $X; fi', [["a", "4"]]),
        ("if false || true; then a; fi", [["a"]]),
        ("a $B ((", [["a", "$B", "(("]]),
        ("X=b\ncase $X in\n a|c) Y=1 ;;\n b) Y=2\n ;;\n *) Y=3 ;;\nesac\na $Y", [["a", "2"]]),
        ("case $X in\n (a) Y=1 ;;\n *) Y=3 ;;\nesac\na $Y", [["a", "$Y"]]),
        ("case", []),
        ("case x in a", []),
        ("for i in 1 2; do a $i; done\nb", [["a", "1"], ["a", "2"], ["b"]]),
        ("for", []),
        ("for i in $(seq 2); do a $i; done", [["a", "$i"]]),
        ("N=$(b c | d)\na $N e", [["a", "$(b c | d)", "e"]]),
        ("X='b c'\nsh -c 'a $X'", [["sh", "-c", "a $X"], ["a", "b", "c"]]),
        ("X=0\nfunction f { X=1; }\ng () { b; }\na $X", [["a", "0"]]),
        ("X=1\nX+=' 2'\nX+=$Y\nY+=3\na $X $Y", [["a", "1", "2$Y", "3"]]),
        ("A=(1 2)\nA+=x\na ${A[@]}", [["a", "1x", "2"]]),
        ("X=1\nA=()\nunset X\na $X ${A[@]} ${X:-4}", [["a", "4"]]),
        ("X=1\na ${X:?set X} ${N:?set N}/b", [["a", "1", "${N}/b"]]),
        (
            "X=1; [ $X = 2 ] && X=3 || Y=4; [ $X = 1 ] || X=5; [ $X = 1 ] && Z=6 || Z=7\na $X $Y $Z",
            [["a", "1", "4", "6"]],
        ),
        ("X=1\ntest $X = 2 &&\n  { X=3; Y=4; }\na $X", [["a", "1"]]),
        ("cat <<EOT > x.json\nif then\nEOT\na", [["cat"], ["a"]]),
        ("cat <<'EOT'\nopen", [["cat"]]),
        ("if", []),
        ("fi; esac; a", [["a"]]),
        ("A=(" * 5000, []),
        ("if then else fi a", [["a"]]),
        ("a 'open", [["a", "open"]]),
        ("N=$((__import__('os').getpid()))\na $N", [["a", "$((__import__('os').getpid()))"]]),
    ],
)
def test_words_of_a_script(script: str, expected: list[list[str]]) -> None:
    assert words(script) == expected


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        # conditions: what differs between their branches is unknown, and has the place of the condition
        ("if [ -f x ]; then A=1; B=3; else A=2; B=3; fi\na $A $B", {"$A": "1:4"}),
        ("A=1\nif [ $X = y ]; then A=2; fi\na $A", {"$A": "2:4"}),
        ("A=1\nif [ $X = y ]; then A=2; exit; fi\na $A", {}),
        ("if [ -f x ]; then A=2; else exit; fi\na $A", {}),
        ("if [ -z \"$1\" ]; then echo usage; exit 1; fi\nA=${1}\na $A", {"${1}": ""}),
        ("case $X in a) A=1;; *) A=2;; esac\na $A", {"$A": "1:1"}),
        ("case $X in a) A=1;; b) A=1;; esac\na $A", {"$A": "1:1"}),
        ("[ -f x ] && L=1\na $L", {"$L": "1:1"}),
        ("L=1; grep -q y z || L=2\na $L", {"$L": "1:6"}),
        ("cd x && L=1\na $L", {}),
        # what is computed from it
        ("[ -f x ] && L=1\nM=$((L + 1))\nN=--m=$M\na $N ${L:+--l}", {"$((L + 1))": "1:1", "${L:+--l}": "1:1"}),
        ("if [ -f x ]; then A=1; fi\nB=($A --b)\na ${B[@]} ${B[1]}", {"$A": "1:4", "${B[1]}": "1:4"}),
        ("A=1\nif ! [ 1 = 1 ]; then A=2; fi\na $A", {}),
        ("A=1\nif ! [ -f x ]; then A=2; fi\na $A", {"$A": "2:4"}),
        ("G=1\nwhile [ -n \"$1\" ]; do G=2; shift; done\na $G", {}),
        # loops
        ("G=8\nwhile [ $G -lt $N ]; do G=$((G*2)); done\na $G", {"$G": "2:1"}),
        ("G=8\nfor i in $(seq 3); do G=$i; done\na $G $i", {"$G": "2:1", "$i": "2:1"}),
        ("G=8\nfor i in $(seq 3); do a $G; G=1; done", {"$G": "2:1"}),
        ("G=8\nfor i in 1 2 3; do G=$((G + 1)); done\na $G", {}),
        ("G=1\nfor ((i = 0; i < 3; i++)); do G=$i; done\na $G", {"$G": "2:1"}),
        ("G=1\nwhile true; do G=$((G + 1)); done\na $G", {"$G": "2:1"}),
        ("G=1\nwhile [[ $# -gt 0 ]]; do case $1 in --g) G=$2; shift;; esac; shift; done\na $G", {}),
        # commands that set variables
        (". ./e.env\na ${X:-1}", {"${X}": "`. ./e.env`, which may set it, is not read"}),
        ("source ~/.bashrc\nX=1; source e.env\na $X", {}),
        # expansions that are not computed
        ("a ${X%.json} x{1,2} $(date)",
         {"${X%.json}": "", "x{1,2}": "`migrate` does not expand braces", "$(date)": ""}),
        ("N=$(f)\na $((2*N*3))", {"$((2*N*3))": ""}),
        ("X=$Y\na ${X:+--b}", {"${X:+--b}": ""}),
        ("a '$X' \"\\$X\"", {}),
    ],
)  # fmt: skip
def test_what_is_unknown_in_a_command(script: str, expected: dict[str, str]) -> None:
    command = read_script(Text("run.sh", script)).commands[-1]
    unknowns = [unknown for word in command for unknown in word.unknowns]
    places = {each: f"{each.where.line}:{each.where.column}" if each.where else each.why for each in unknowns}
    assert places == expected


@pytest.mark.parametrize(
    "construct",
    [
        "local X=2", "declare -i X=2", "let X+=1", "read -r X", "echo 2 | read X", "mapfile -t X", "getopts X:",
        "break", "continue", "return", "printf -v X 2", "set -- 2", "A[1]=2", "A=([1]=2)",
        "select X in 1 2; do X=3; done", "until X=2; do b; done", "for Y in 1; do break; done",
        "((X = 2))", "if ((X)); then X=2; fi", "for ((Y = 0, X = 3; Y < X; Y++)); do b; done",
        "for ((Y = 0; Y < 3; X++)); do b; done", "! read X", "! { X=2; }", "! (X=2)",
        "if [ -f x ]; then read X; fi", "shift", "f() { X=2; }; f", "function f { X=2; }; if f 3; then b; fi",
    ],
)  # fmt: skip
def test_a_construct_that_is_not_read_is_a_problem_where_it_is_reached(construct: str) -> None:
    (problem,) = refused(read_script, Text("run.sh", f"X=1\n{construct}\na $X"))
    assert (problem.id, problem.where and problem.where.line) == ("migrate-not-readable", 2)
    assert "--run" in problem.hint
    not_reached = f"f() {{\n{construct}\n}}\nX=1\nif false; then\n{construct}\nfi\na --b $X"
    assert words(not_reached) == [["a", "--b", "1"]]


@pytest.mark.parametrize("begin", ["( ", "if ", "$(", "${X:-", '"${X:-', "{ ", "case x in y) ", "f() "])
def test_deep_nesting_ends_in_a_problem_or_in_words(begin: str) -> None:
    try:
        read_script(Text("run.sh", begin * 1200))
    except Problems as stop:
        assert stop.problems[0].id == "migrate-nested-too-deep"


def test_a_loop_without_end_ends() -> None:
    script = "X=1\nfor a in 1 2 3 4 5 6 7 8 9; do\n" * 8 + "X=2\n" + "done\n" * 8
    pinned(refused(read_script, Text("run.sh", script)))


def test_a_variable_keeps_its_place() -> None:
    (command,) = read_script(Text("run.sh", 'ARGS="--lr 1\n  --seed 2"\npython p.py $ARGS\n')).commands
    assert [(word.text, word.place.line, word.place.column) for word in command[2:]] == [
        ("--lr", 1, 7), ("1", 1, 12), ("--seed", 2, 3), ("2", 2, 10)
    ]  # fmt: skip


def test_the_argument_of_another_shell_keeps_its_place() -> None:
    script = "CMD=' p.py --lr 1'\nsrun bash -c 'python $CMD --seed 2'\n"
    command = read_script(Text("run.sh", script)).commands[-1]
    assert [(word.text, word.place.line, word.place.column) for word in command[2:]] == [
        ("--lr", 1, 12), ("1", 1, 17), ("--seed", 2, 27), ("2", 2, 34)
    ]  # fmt: skip


def test_a_shell_that_starts_itself_ends() -> None:
    assert read_script(Text("run.sh", "X='bash -c \"\\$X\"'\nbash -c '$X'")).commands


def test_a_variable_that_repeats_itself_ends() -> None:
    doubling = "X=ab\n" + 'X="$X$X"\n' * 40 + "a $X"
    pinned(refused(read_script, Text("run.sh", doubling)))


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("a < in --b", [["a", "--b"]]),
        ("a <in >out --b", [["a", "--b"]]),
        ("a <in 2>err --b", [["a", "--b"]]),
        ("a </dev/null>out --b", [["a", "--b"]]),
        ("a <in | b > c", [["a"], ["b"]]),
        ("cat <<EOT>out\nx\nEOT\na", [["cat"], ["a"]]),
        ("a <(b) --c", [["a", "--c"]]),
        ("for x in 1; do a $x; done <in >out", [["a", "1"]]),
        ("[ -f x ] && a", [["a"]]),
        ("{ a; b; }", [["a"], ["b"]]),
        ("a [b c] {d e}", [["a", "[b c]", "{d e}"]]),
        ("X='<b c> d'\na $X", [["a", "<b c>", "d"]]),
        ("X=(--l [0]*1+([1]*2) --m)\na ${X[@]}", [["a", "--l", "[0]*1+([1]*2)", "--m"]]),
        ("a <b", [["a"]]),
        ("a <", [["a"]]),
    ],
)
def test_words_beside_redirections_and_placeholders(script: str, expected: list[list[str]]) -> None:
    assert words(script) == expected


@pytest.mark.parametrize(
    ("sum_", "value"),
    [("7 / 2", 3), ("(1 - 8) / 2", -3), ("7 / (0 - 2)", -3), ("(1 - 8) / (0 - 2)", 3), ("8 / (2 - 2)", None),
     ("2 ** 10", None), ("7 % 2", None), ("7 // 2", None), ("1 && 2", None), ("1 < 2", None), ("--3", None)],
)  # fmt: skip
def test_arithmetic(sum_: str, value: int | None) -> None:
    assert evaluate(sum_, lambda name: "") == value
