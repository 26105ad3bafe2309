#!/usr/bin/env python3
"""Makes a man page of section 3 for each public function, from the comments of the installed headers.

usage: functions.py --list HEADER...
       functions.py --output DIRECTORY --date-of PAGE HEADER...

--list prints the names of the pages. The date of the pages is that of PAGE, a page in mdoc.

A comment documents the declarations that follow it without an empty line. Functions with the same
comment have one page, with the structs that their prototypes name. Constants and enums belong to the
struct or function that follows them. Each name is a page: one that another page describes is a line
with .so."""
import argparse
import os
import re
import sys
import textwrap
from dataclasses import dataclass, field

SUMMARY_CHARACTERS = 60
COLUMNS = 78
NAMES = re.compile(r"\bfa_\w+")


@dataclass(eq=False)
class Item:
    kind: str  # "function", "type" or "constants"
    name: str
    code: str
    comment: str  # as it stands in the header
    header: str = ""
    before: list = field(default_factory=list)  # constants and enums that belong to it


@dataclass(eq=False)
class Page:
    functions: list
    types: list = field(default_factory=list)

    def names(self):
        return [item.name for item in self.functions]

    def sources(self):
        """All text of the header that the page has."""
        items = [*self.functions, *self.types]
        items += [other for item in items for other in item.before]
        return "\n".join(item.comment + item.code for item in items)


# ---- reading headers

def pieces(text):
    """Yields the kind and text of what stands at a header's top level."""
    lines = iter(text.split("\n"))
    for line in lines:
        if line.startswith("/*"):
            while "*/" not in line:
                line += "\n" + next(lines)
            yield "comment", line
        elif re.match(r"#define FA_\w+ ", line):
            yield "constants", line
        elif re.match(r"(struct|enum) \w+ \{$", line):
            while not line.endswith("\n};"):
                line += "\n" + next(lines)
            yield "type", line
        elif re.match(r"\w", line) and not re.match(r"struct \w+;|extern ", line):
            while not line.endswith(";"):
                line += "\n" + next(lines)
            yield "function", line
        else:
            yield "other", line


def read_items(path):
    items, comment, follows = [], "", False
    with open(path, encoding="utf-8") as file:
        text = file.read()
    for kind, piece in pieces(text):
        if kind == "comment":
            comment, follows = piece, False
        elif kind == "other":
            comment, follows = "", False
        elif kind == "constants":
            if follows:
                items[-1].code += "\n" + piece
            else:
                items.append(Item(kind, "", piece, comment))
            follows = True
        elif kind == "type":
            items.append(Item(kind, piece.split()[1], piece, comment))
            comment = ""
        else:
            items.append(Item(kind, re.search(r"(\w+)\(", piece)[1], piece, comment))
    before, found = [], []
    for item in items:
        item.header = os.path.basename(path)
        if item.kind == "constants" or item.code.startswith("enum") and item.kind == "type":
            before.append(item)
        else:
            item.before, before = before, []
            found.append(item)
    return found


class Manual:
    def __init__(self, headers):
        self.pages = []
        self.home = {}  # the page of each name: of functions before types
        types = {}
        items = [item for header in headers for item in read_items(header)]
        for item in items:
            last = self.pages and self.pages[-1].functions[-1]
            if item.kind == "type":
                types[item.name] = item
            elif last and item.comment and item.comment == last.comment:
                self.pages[-1].functions.append(item)
            else:
                self.pages.append(Page([item]))
        for page in self.pages:
            for item in page.functions:
                self.home[item.name] = page
                for name in re.findall(r"struct (\w+)", item.code):
                    if name in types and types[name] not in page.types:
                        page.types.append(types[name])
        # Structs that only other structs name are on the page of the first of these.
        for page in self.pages:
            for item in page.types:
                for name in re.findall(r"struct (\w+)", item.code):
                    if name in types and not any(types[name] in other.types for other in self.pages):
                        page.types.append(types[name])
        for page in self.pages:
            for item in [*page.types, *page.functions]:
                for named in [item, *item.before]:
                    if named.name:
                        self.home.setdefault(named.name, page)
        lost = set(types) - set(self.home)
        if lost:
            sys.exit(f"no function takes, and so no page has, {', '.join(sorted(lost))}")


# ---- reading comments

def comment_lines(comment):
    lines = comment.strip()[2:-2].split("\n")
    lines = [lines[0].strip(), *(re.sub(r"^ ?\* ?", "", line).rstrip() for line in lines[1:])]
    return lines


def indent(line):
    return len(line) - len(line.lstrip())


def term(line):
    """A line of a list: its term and the text after it, or None."""
    line = line.strip()
    match = re.match(r"((?:-E[A-Z0-9]+(?: \([^)]*\))?(?:, )?)+):?(?: +(.*))?$", line) or \
        re.match(r"((?:[a-z]+: )?[a-z][\w, ]*?\w)(?:(?:  +|: )(\S.*))?$", line)
    return (match[1], match[2] or "") if match else None


def blocks(lines):
    """Yields ("text", str), ("code", lines) or ("list", [(term, blocks)])."""
    lines = list(lines)
    paragraph = []

    def ended():
        text = " ".join(paragraph)
        paragraph.clear()
        return [("text", text)] if text else []

    while lines:
        line = lines.pop(0)
        if not line:
            yield from ended()
        elif not indent(line):
            paragraph.append(line)
        else:
            inner = [line]
            while lines and lines[0] and indent(lines[0]) >= indent(line):
                inner.append(lines.pop(0))
            if paragraph and paragraph[-1].endswith(":") and not re.match(r" *-E", line):
                yield from ended()
                yield "code", textwrap.dedent("\n".join(inner)).split("\n")
            elif term(line) and (not paragraph or paragraph[-1].endswith(".") or re.match(r" *-E", line)):
                yield from ended()
                yield "list", entries(inner)
            else:
                # A paragraph with a hanging indent.
                last = paragraph.pop()
                yield from ended()
                yield "text", " ".join([last, *(text.strip() for text in inner)])
    yield from ended()


def entries(lines):
    """A list's terms, each with its text and what is indented below it."""
    lines, found = list(lines), []
    outer = indent(lines[0])
    while lines:
        line = lines.pop(0)
        # A long list of names goes on in the next line.
        while line.endswith(",") and not term(line) and lines:
            line += " " + lines.pop(0).strip()
        if not term(line):
            sys.exit(f"this line of a list has no text two spaces after its term: {line}")
        name, text = term(line)
        text, below = [text], []
        while lines and indent(lines[0]) > outer:
            if indent(lines[0]) == outer + 2 and term(lines[0]) or below:
                below.append(lines.pop(0))
            else:
                text.append(lines.pop(0).strip())
        inner = [("text", " ".join(text).strip())]
        if below:
            inner.append(("list", entries(below)))
        found.append((name, inner))
    return found


# ---- writing mdoc

def escape(text):
    text = text.replace("\\", "\\e").replace("…", "...").replace("^", "\\(ha").replace("~", "\\(ti")
    return "\\&" + text if text.startswith((".", "'")) else text


class Writer:
    """The lines of one page. Words that name something become macros."""

    def __init__(self, own, known):
        self.own, self.known = own, known
        self.lines = []

    def add(self, *lines):
        self.lines += lines

    def macro(self, word):
        """The macro for a word, or None."""
        opening, core, closing = re.fullmatch(r"(\(?)(.*?)((?<!\()[.,:;)]*)", word).groups()
        # The parentheses of a function belong to its name, others follow it.
        call = re.fullmatch(r"(\w+)\(\)(.*)", core + closing)
        if call:
            core, closing = call.groups()
            if core in self.known and core not in self.own:
                macro = f"Xr {core} 3"
            else:
                macro = f"Fn {core}"
        elif re.fullmatch(r"-E[A-Z0-9]+", core):
            macro = f"Er \\{core}"
        elif re.fullmatch(r"@\w+", core):
            macro = f"Fa {core[1:]}"
        elif re.fullmatch(r"FA_[A-Z0-9_]+|NULL", core):
            macro = f"Dv {core}"
        else:
            return None
        if opening:
            if not closing.startswith(")"):
                return None
            macro, closing = f"Pq {macro}", closing[1:]
        return " ".join([macro, *closing])

    def words(self, text):
        plain = []
        for word in [*text.split(), None]:
            macro = word and self.macro(word)
            if plain and (macro or word is None):
                self.add(*(escape(line) for line in textwrap.wrap(
                    " ".join(plain), COLUMNS, break_long_words=False, break_on_hyphens=False)))
                plain = []
            if macro:
                self.add("." + macro)
            elif word is not None:
                plain.append(word)

    def text(self, text):
        """Each sentence begins a line, as mdoc wants it."""
        for sentence in re.split(r"(?<=\w[.?!])\s+|(?<=\w[.?!]\))\s+|(?<=[)\]][.])\s+", text):
            self.words(sentence)

    def code(self, text):
        self.add(".Bd -literal")
        for line in text.replace("\t", "    ").split("\n"):
            line = escape(line).replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
            self.add(line)
        self.add(".Ed")

    def list(self, items, errors):
        self.add(".Bl -tag -width Ds")
        for name, inner in items:
            marked = [self.macro(word) for word in name.split()]
            if errors and all(marked):
                self.add(".It " + " ".join(marked))
            else:
                self.add(".It " + escape(name).replace("-E", "\\-E"))
            self.blocks(inner)
        self.add(".El")

    def blocks(self, found, again=False):
        for kind, content in found:
            if kind == "list":
                self.list(content, False)
            elif kind == "code":
                self.code("\n".join(content))
            else:
                if again:
                    self.add(".Pp")
                self.text(content)
            again = True


def is_errors(block):
    return block[0] == "list" and block[1][0][0].startswith("-E")


def summary(page, lines):
    """The first sentence, as the page's title."""
    text = " ".join(" ".join(lines).split())
    text = re.split(r"[.;:](?:\s|$)| \(", text)[0]
    commas = [match.start() for match in re.finditer(", ", text)
              if not re.search(r"[\[(][^])]*$", text[:match.start()])]
    while len(text) > SUMMARY_CHARACTERS and commas:
        text = text[:commas.pop()]
    if not re.match(r"[A-Z][a-z]+s\b", text):
        sys.exit(f"{page.functions[0].header}: the comment of {', '.join(page.names())} does not begin "
                 f"with what it does (\"Returns ...\"), but: {text}")
    return text[0].lower() + text[1:].replace("@", "")


def prototype(item):
    code = " ".join(item.code.rstrip(";").split())
    kind, name, arguments = re.fullmatch(r"(.*?)(\w+)\((.*)\)", code).groups()
    lines = [f".Ft \"{kind.strip()}\"", f".Fo {name}"]
    lines += [f".Fa \"{argument.strip()}\"" for argument in arguments.split(",")]
    return [*lines, ".Fc"]


def page_text(manual, page, date):
    first = page.functions[0]
    writer = Writer(page.names(), {name for name, home in manual.home.items()
                                   if name in home.names()})
    lines = comment_lines(first.comment)
    found = list(blocks(lines))
    errors = [block for block in found if is_errors(block)]
    overview = first.header.removesuffix(".h")

    writer.add(".\\\" Made from the header by packaging/man/functions.py.",
               f".Dd {date}", f".Dt {first.name.upper()} 3", ".Os", ".Sh NAME")
    for name in page.names():
        writer.add(f".Nm {name}" + (" ," if name != page.names()[-1] else ""))
    writer.add(f".Nd {escape(summary(page, lines))}",
               ".Sh LIBRARY", "The client library of fad (libfaclient, \\-lfaclient)",
               ".Sh SYNOPSIS", ".In faclient.h")
    for item in page.functions:
        writer.add(*prototype(item))

    writer.add(".Sh DESCRIPTION")
    writer.blocks([block for block in found if not is_errors(block)])
    for item in [*page.types, *page.functions]:
        shown = [other for other in [*item.before, item] if other.kind != "function"]
        for other in shown:
            if other.kind == "constants":
                if other is shown[0]:
                    writer.add(".Ss Constants")
                writer.code(other.comment + ("\n" if other.comment else "") + other.code)
            else:
                writer.add(f".Ss {other.code.split(' {')[0]}")
                writer.blocks(blocks(comment_lines(other.comment)) if other.comment else [])
                writer.code(other.code)

    if any(item.code.startswith("int ") for item in page.functions):
        writer.add(".Sh RETURN VALUES")
        writer.text("A negative errno tells of an error; fa_error() then returns a sentence. "
                    "Where nothing else is said, success is 0.")
        writer.add(".Sh ERRORS")
        for _, items in errors:
            writer.list(items, True)
        if errors:
            writer.add(".Pp")
        writer.add("Errors that all functions may return are in", f".Xr {overview} 3" +
                   (" ." if overview == "faclient" else ""))
        if overview != "faclient":
            writer.add("and", ".Xr faclient 3 .")

    others = {name for name in NAMES.findall(page.sources()) if name in manual.home
              and manual.home[name] is not page} | {"faclient", overview}
    if any(item.code.startswith("int ") for item in page.functions):
        others.add("fa_error")
    others -= set(page.names())
    writer.add(".Sh SEE ALSO")
    others = sorted(others)
    writer.add(*(f".Xr {name} 3" + (" ," if name != others[-1] else "") for name in others))
    return "\n".join(writer.lines) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--output")
    parser.add_argument("--date-of")
    parser.add_argument("headers", nargs="+")
    options = parser.parse_args()

    manual = Manual(options.headers)
    if options.list:
        print("\n".join(f"{name}.3" for name in sorted(manual.home)))
        return
    with open(options.date_of, encoding="utf-8") as file:
        date = re.search(r"^\.Dd (.*)$", file.read(), re.MULTILINE)[1]
    for name, page in manual.home.items():
        text = page_text(manual, page, date) if name == page.names()[0] else \
            f".so man3/{page.names()[0]}.3\n"
        with open(os.path.join(options.output, f"{name}.3"), "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main()
