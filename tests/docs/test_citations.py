"""Sources can be followed: every rule names code and tests that exist, and every citation names a rule that
exists.

The rules stand in docs/semantics.md, docs/raft.md and docs/hot-path.md, each under a heading of its own:

    ### T3
    One or two sentences.
    - Kept by: [`check_identity`](../coordinator/transaction/identity.py)
    - Source: KIP-98
    - Held by: `tests/coordinator/test_transaction_table.py::test_...`; ablation `act before the barrier`

Code, tests and other pages cite them as docs/semantics.md T3, or, in a file that names the page anyway, as
rule T3.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
from tidegate.tests.architecture.source import tree_of

pytestmark = pytest.mark.xdist_group("source")

ROOT = Path(__file__).resolve().parents[2]
RULE_PAGES = ("docs/semantics.md", "docs/raft.md", "docs/hot-path.md")
PAGES = sorted(
    path.relative_to(ROOT).as_posix() for path in [*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")]
)
ABLATIONS = {
    "chaos/sim/quorum/ablations.py": "ABLATIONS",
    "tests/replication/test_simulation_ablations.py": "ABLATIONS",
    "tests/coordinator/test_transaction_simulation.py": "ABLATIONS",
    "tests/coordinator/test_cut_simulation.py": "ABLATIONS",
}
"""Where safeguards are taken out one by one, and the table that lists them."""

SOURCES = {".py", ".proto", ".md", ".js", ".java", ".go", ".toml", ".yaml", ".yml", ".sh"}
OUTSIDE = re.compile(r"^(\.|build$|node_modules$|__pycache__$|dist$)|_pb2|\.egg-info$")

NUMBER = r"[A-Z]\d+"
NUMBERS = rf"{NUMBER}(?:(?:, and |, | and | to | or ){NUMBER})*"
BY_PAGE = re.compile(rf"docs/(semantics|raft|hot-path)\.md(?:#\w+)?,? ({NUMBERS})\b")
BY_RULE = re.compile(rf"\b[Rr]ules? ({NUMBERS})\b")
WITHIN_A_PAGE = re.compile(rf"\(({NUMBERS})\)")
"""As the pages of rules cite one another's, and the tour cites theirs."""
CELL = re.compile(rf"\| ({NUMBERS}) \|")
PAGE_NAMED = re.compile(r"docs/(semantics|raft|hot-path)\.md|\((semantics|raft|hot-path)\.md")
MARKDOWN_FILE = re.compile(r"(?<![\w/.-])[\w./-]*\w\.md\b")
SHOUTED = "|".join(Path(page).stem.replace("-", "").upper() for page in RULE_PAGES if "raft" not in page)
FOREIGN = re.compile(rf"\b(?:{SHOUTED})\b|\b[A-Z]{{4,}}(?: section)? \d{{1,2}}(?:\.\d+)*\b|\b[Rr]ules? \d")
"""Documents by a name in capitals, instead of by their path, and numbers of rules without a letter."""


@dataclass
class Rule:
    page: str
    number: str
    line: int
    text: list[str] = field(default_factory=list)
    kept_by: list[tuple[str, str]] = field(default_factory=list)
    """(symbol, path relative to the repository)"""
    source: str = ""
    held_by: list[str] = field(default_factory=list)
    shown_by: list[str] = field(default_factory=list)
    """Benchmarks"""


@dataclass(frozen=True)
class Citation:
    path: str
    line: int
    number: str
    page: str = ""


# --- reading ------------------------------------------------------------------------------------------------


def rules_of(page: str, text: str) -> list[Rule]:
    rules: list[Rule] = []
    current: Rule | None = None
    for line, content in enumerate(text.splitlines(), 1):
        heading = re.fullmatch(rf"### ({NUMBER})", content)
        if heading:
            current = Rule(page, heading[1], line)
            rules.append(current)
        elif content.startswith("#"):
            current = None
        elif current is not None and content.startswith("  "):
            current.text[-1] += content[1:]  # an item of the list goes on
        elif current is not None:
            current.text.append(content)
    for rule in rules:
        _take_items(rule)
    return rules


def _take_items(rule: Rule) -> None:
    """Moves the items below a rule's sentences from its text to where they belong."""
    text, rule.text = rule.text, []
    for content in text:
        kind, _, rest = content.removeprefix("- ").partition(": ")
        if kind == "Kept by":
            links = re.findall(r"\[`([^`]+)`\]\(([^)#]+)\)", rest)
            rule.kept_by += [(symbol, _within(rule.page, target)) for symbol, target in links]
        elif kind == "Source":
            rule.source = rest
        elif kind == "Held by":
            rule.held_by += re.findall(r"`([^`]+)`", rest)
        elif kind == "Shown by":
            rule.shown_by += re.findall(r"`python (?:-m )?(bench[/.]\w+)", rest)
        else:
            rule.text.append(content)


def _within(page: str, target: str) -> str:
    """A link of a page as a path from the repository's root."""
    parts: list[str] = page.split("/")[:-1]
    for part in target.split("/"):
        if part == "..":
            parts = parts[:-1]
        else:
            parts.append(part)
    return "/".join(parts)


def citations_of(path: str, text: str) -> Iterator[Citation]:
    for line, content in enumerate(text.splitlines(), 1):
        for page, numbers in BY_PAGE.findall(content):
            yield from (
                Citation(path, line, number, f"docs/{page}.md") for number in re.findall(NUMBER, numbers)
            )
        for numbers in [
            *BY_RULE.findall(content),
            *(WITHIN_A_PAGE.findall(content) if path in RULE_PAGES else ()),
        ]:
            yield from (Citation(path, line, number) for number in re.findall(NUMBER, numbers))


@cache
def symbols(path: Path) -> frozenset[str]:
    """Functions, classes, their methods and fields, and constants of a module."""
    found: set[str] = set()

    def take(body: Iterable[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    take(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found.update(prefix + target.id for target in targets if isinstance(target, ast.Name))
            elif isinstance(node, ast.If | ast.Try):
                take(node.body, prefix)

    take(tree_of(path.read_text()).body, "")
    return frozenset(found)


@cache
def ablations() -> frozenset[str]:
    """The names in the tables of what is taken out: keys of a dictionary, or functions that a list begins its
    entries with."""
    found: set[str] = set()
    for path, table in ABLATIONS.items():
        for node in tree_of((ROOT / path).read_text()).body:
            targets = (
                [node.target]
                if isinstance(node, ast.AnnAssign)
                else node.targets
                if isinstance(node, ast.Assign)
                else []
            )
            if not any(isinstance(target, ast.Name) and target.id == table for target in targets):
                continue
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            if isinstance(node.value, ast.Dict):
                found.update(str(key.value) for key in node.value.keys if isinstance(key, ast.Constant))
            elif isinstance(node.value, ast.List):
                rows = [row.elts[0] for row in node.value.elts if isinstance(row, ast.Tuple)]
                found.update(first.id for first in rows if isinstance(first, ast.Name))
    return frozenset(found)


@cache
def sources() -> Mapping[str, str]:
    """Every text of the repository that may cite, by its path; this file is about citations, and has examples
    of wrong ones."""
    found: dict[str, str] = {}
    pending = [ROOT]
    while pending:
        for path in sorted(pending.pop().iterdir()):
            if OUTSIDE.search(path.name) or path.is_symlink():
                continue
            if path.is_dir():
                pending.append(path)
            elif path.suffix in SOURCES and path != Path(__file__).resolve():
                found[path.relative_to(ROOT).as_posix()] = path.read_text()
    return found


@cache
def all_rules() -> list[Rule]:
    return [rule for page in RULE_PAGES for rule in rules_of(page, (ROOT / page).read_text())]


# --- judging ------------------------------------------------------------------------------------------------


def faults_of_rules(rules: Iterable[Rule], root: Path = ROOT) -> list[str]:
    faults: list[str] = []
    seen: dict[str, Rule] = {}
    for rule in rules:
        where = f"{rule.page}:{rule.line} {rule.number}"
        if rule.number in seen:
            faults.append(f"{where}: the number stands twice")
        seen[rule.number] = rule
        if not "".join(rule.text).strip():
            faults.append(f"{where}: says nothing")
        if not rule.source:
            faults.append(f"{where}: no source")
        if not rule.kept_by:
            faults.append(f"{where}: names no code that keeps it")
        if not rule.held_by:
            faults.append(f"{where}: names no test or ablation that holds it")
        for symbol, path in rule.kept_by:
            faults += [f"{where}: {fault}" for fault in _fault_of_symbol(symbol, root / path, path)]
        for test in rule.held_by:
            faults += [f"{where}: {fault}" for fault in _fault_of_test(test, root)]
        for name in (each.replace(".", "/") for each in rule.shown_by):
            if not (root / name).exists() and not (root / f"{name}.py").exists():
                faults.append(f"{where}: there is no {name}")
    return faults


def _fault_of_symbol(symbol: str, path: Path, shown: str) -> Iterator[str]:
    if not path.exists():
        yield f"there is no {shown}"
    elif path.suffix == ".py" and symbol not in (path.stem, path.name) and symbol not in symbols(path):
        yield f"{shown} has no {symbol}"


def _fault_of_test(test: str, root: Path) -> Iterator[str]:
    path, separator, name = test.partition("::")
    if not separator:
        if test not in ablations():
            yield f"there is no ablation {test!r}"
    elif not (root / path).is_file():
        yield f"there is no {path}"
    elif name.replace("::", ".") not in symbols(root / path):
        yield f"{path} has no {name}"


def faults_of_citations(texts: Mapping[str, str], rules: Iterable[Rule]) -> list[str]:
    pages = {rule.number: rule.page for rule in rules}
    faults: list[str] = []
    for path, text in texts.items():
        for cited in citations_of(path, text):
            where = f"{path}:{cited.line}"
            if cited.number not in pages:
                faults.append(f"{where}: there is no rule {cited.number}")
            elif cited.page and pages[cited.number] != cited.page:
                faults.append(f"{where}: {cited.number} stands in {pages[cited.number]}")
            elif not cited.page and path not in RULE_PAGES and not PAGE_NAMED.search(text):
                faults.append(
                    f"{where}: rule {cited.number}, and nowhere in this file which page it stands in"
                )
    return faults


def foreign_documents(texts: Mapping[str, str], root: Path = ROOT) -> list[str]:
    """Documents that are named and that this repository does not have."""
    faults: list[str] = []
    for path, text in texts.items():
        for line, content in enumerate(text.splitlines(), 1):
            found = FOREIGN.search(content)
            if found:
                faults.append(f"{path}:{line}: {found[0]!r} is of a document that is not in the repository")
            for name in MARKDOWN_FILE.findall(content):
                bases = (root, root / "docs", (root / path).parent)
                if not any((base / name).exists() for base in bases):
                    faults.append(f"{path}:{line}: there is no {name}")
    return faults


def broken_links(page: str, text: str, root: Path = ROOT) -> list[str]:
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    local = [
        target.partition("#")[0]
        for target in targets
        if "://" not in target and not target.startswith(("#", "mailto:"))
    ]
    return [
        f"{page}: there is no {target}"
        for target in local
        if target and not (root / _within(page, target)).exists()
    ]


def faults_of_symbols(page: str, text: str, root: Path = ROOT) -> list[str]:
    """Links like [`Log.read`](../storage/log/log.py) whose file has no such function, class or constant."""
    links = re.findall(r"\[`([^`]+)`\]\(([^)#\s]+)\)", text)
    paths = [(symbol, _within(page, target)) for symbol, target in links if "://" not in target]
    return [
        f"{page}: {fault}" for symbol, path in paths for fault in _fault_of_symbol(symbol, root / path, path)
    ]


# --- the repository -----------------------------------------------------------------------------------------


def test_every_rule_names_code_a_source_and_tests_that_exist() -> None:
    assert len(all_rules()) > 100
    assert faults_of_rules(all_rules()) == []


def test_every_citation_names_a_rule_that_exists() -> None:
    assert faults_of_citations(sources(), all_rules()) == []


def test_no_document_is_cited_that_is_not_in_the_repository() -> None:
    assert foreign_documents(sources()) == []


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_to_a_file(page: str) -> None:
    assert broken_links(page, (ROOT / page).read_text()) == []


def test_every_term_of_the_glossary_says_where_it_lives() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text()
    entries = re.findall(r"^\*\*(.+?)\*\*(.+?)(?=\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    terms = [term for term, _ in entries]
    assert len(terms) > 30
    assert terms == sorted(terms, key=str.lower)
    assert [term for term, said in entries if "](" not in said] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_symbol_that_a_page_links_stands_in_its_file(page: str) -> None:
    assert faults_of_symbols(page, (ROOT / page).read_text()) == []


def test_the_tour_names_rules_and_ablations_that_exist() -> None:
    text = (ROOT / "docs" / "tour.md").read_text()
    numbers = {rule.number for rule in all_rules()}
    cited = {
        number
        for group in [*WITHIN_A_PAGE.findall(text), *CELL.findall(text)]
        for number in re.findall(NUMBER, group)
    }
    assert len(cited) > 30
    assert cited - numbers == set()
    held_by = {rule.number: rule.held_by for rule in all_rules()}
    rows = re.findall(rf"\| ({NUMBER}) \|[^|]*\| ablation `([^`]+)` \|", text)
    assert len(rows) > 10
    assert [row for row in rows if row[1] not in held_by[row[0]]] == []


# --- the checks themselves ----------------------------------------------------------------------------------

RULE = """
### T1
The shard refuses.
- Kept by: [`rules_of`](../tests/docs/test_citations.py)
- Source: KIP-98
- Held by: `tests/docs/test_citations.py::test_a_whole_rule_has_no_fault`
"""


def test_a_whole_rule_has_no_fault() -> None:
    (rule,) = rules_of("docs/semantics.md", RULE)
    assert (rule.number, rule.source, rule.kept_by) == (
        "T1",
        "KIP-98",
        [("rules_of", "tests/docs/test_citations.py")],
    )
    assert faults_of_rules([rule]) == []


@pytest.mark.parametrize(
    ("given", "put", "fault"),
    [
        (
            "- Held by: `tests/docs/test_citations.py::test_a_whole_rule_has_no_fault`",
            "",
            "names no test or ablation",
        ),
        ("::test_a_whole_rule_has_no_fault", "::test_that_there_is_not", "has no test_that_there_is_not"),
        (
            "tests/docs/test_citations.py::",
            "tests/docs/test_nothing.py::",
            "there is no tests/docs/test_nothing.py",
        ),
        (
            "tests/docs/test_citations.py::test_a_whole_rule_has_no_fault",
            "no such",
            "there is no ablation 'no such'",
        ),
        ("[`rules_of`]", "[`Rule.nothing`]", "has no Rule.nothing"),
        ("../tests/docs/test_citations.py", "../tests/docs/gone.py", "there is no tests/docs/gone.py"),
        ("- Source: KIP-98", "", "no source"),
        ("The shard refuses.", "", "says nothing"),
        ("### T1", "### T1\nAs below.\n### T1", "stands twice"),
        ("- Source", "- Shown by: `python bench/nothing at all`\n- Source", "there is no bench/nothing"),
        ("- Held by: ", "- Held by: `tests/nothing.py::test_x`,\n  ", "there is no tests/nothing.py"),
    ],
)
def test_a_fault_of_a_rule_is_found(given: str, put: str, fault: str) -> None:
    assert given in RULE
    faults = faults_of_rules(rules_of("docs/semantics.md", RULE.replace(given, put)))
    assert any(fault in each for each in faults), faults


@pytest.mark.parametrize("name", ["no fsync", "minimal_isr", "act before the barrier"])
def test_ablations_are_found_in_each_of_their_tables(name: str) -> None:
    assert name in ablations()
    assert f"{name} or not" not in ablations()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("(docs/semantics.md T1)", None),
        ("(docs/semantics.md T1 and T1): rule T1", None),
        ("(docs/semantics.md T9)", "there is no rule T9"),
        ("(docs/semantics.md T1, T8)", "there is no rule T8"),
        ("(docs/raft.md T1)", "T1 stands in docs/semantics.md"),
        ("see rule T1", "nowhere in this file which page"),
        ("docs/semantics.md, below: rules T1 and T7", "there is no rule T7"),
    ],
)
def test_a_citation_is_resolved(text: str, fault: str | None) -> None:
    faults = faults_of_citations({"node/some.py": text}, rules_of("docs/semantics.md", RULE))
    assert faults == [] if fault is None else len(faults) == 1 and fault in faults[0]


def test_the_pages_of_rules_cite_one_another_without_a_word() -> None:
    rules = rules_of("docs/semantics.md", RULE)
    assert faults_of_citations({"docs/raft.md": "counts (T1), (G1a) and (T1, T9)"}, rules) == [
        "docs/raft.md:1: there is no rule T9"
    ]
    assert faults_of_citations({"node/some.py": "a list (T9)"}, rules) == []


@pytest.mark.parametrize(
    "text", ["(SEMANTICS T3)", "HOTPATH H7", "MANUAL 4.1", "as NOTHING.md says", "(rule 9)"]
)
def test_a_document_that_is_not_here_is_found(text: str) -> None:
    assert foreign_documents({"node/some.py": text}) != []


@pytest.mark.parametrize(
    "text", ["operations.md says", "docs/kafka.md", "RAFT is a protocol", "our design", "the rules of h11"]
)
def test_what_is_here_may_be_named(text: str) -> None:
    assert foreign_documents({"node/some.py": text}) == []


def test_a_link_to_a_symbol_that_is_gone_is_found() -> None:
    assert (
        faults_of_symbols("docs/x.md", "[`rules_of`](../tests/docs/test_citations.py) [r](../README.md)")
        == []
    )
    assert faults_of_symbols("docs/x.md", "[`rules_of_old`](../tests/docs/test_citations.py)") != []


def test_a_link_that_leads_nowhere_is_found() -> None:
    assert (
        broken_links("docs/x.md", "[a](../nothing/at/all.py) [b](kafka.md) [c](https://example.org/x.py)")
        != []
    )
    assert broken_links("docs/x.md", "[b](kafka.md#differences) [r](../README.md)") == []
