#!/usr/bin/env python3
"""Makes the completions of a program for bash, zsh and fish from what it prints for --help.

usage: make.py --output DIRECTORY PROGRAM

It understands lines "  -s, --socket PATH  text", "  command [--option] WORD  text", "  command word
NAME  text", and "    [--option N]  text" below a command, whose option it is. FILE and PATH stand for
files; "a, b or c" at the beginning of a text are the values of the option."""
import argparse
import os
import re
import shlex
import subprocess
from dataclasses import dataclass, field

VALUES = re.compile(r"((?:[a-z]+, )+(?:or )?[a-z]+(?:,? or [a-z]+)?|[a-z]+ or [a-z]+)(?=$| for | by | \(|;|,)")


@dataclass
class Option:
    short: str = ""
    long: str = ""
    argument: str = ""
    text: str = ""
    commands: list = field(default_factory=list)  # none: all

    def names(self):
        return [name for name in (self.short, self.long) if name]

    def is_file(self):
        return self.argument in ("FILE", "PATH")

    def values(self):
        match = self.argument and VALUES.match(self.text)
        return re.split(r",? or |, ", match[1].replace(", or ", " or ")) if match else []


@dataclass
class Command:
    words: list
    text: str = ""


class Usage:
    def __init__(self, text):
        self.options, self.commands = [], []
        # "BENCHMARK..." instead of "COMMAND": one after another
        self.repeats = bool(re.search(r" [A-Z]+\.\.\.$", text.split("\n")[0]))
        last = None
        for line in text.split("\n"):
            match = re.match(r"( {2,})(\S.*?)(?:  +(\S.*))?$", line)
            if not match:
                last = None
                continue
            indent, head, words = match.groups()
            if head.startswith("-"):
                # A long option may leave only one space before its text.
                head, words = re.match(r"((?:-\w)?(?:, )?(?:--[\w-]+)?(?: [A-Z]+\b)?) *(.*)",
                                       line.strip()).groups()
                last = self.option(head, words)
            elif head.startswith("[-") and self.commands:
                last = self.own_options(head, words or "")
            elif len(indent) == 2 and re.match(r"[a-z]", head):
                last = Command(re.match(r"[a-z]+(?: [a-z]+)*", head)[0].split(), words or "")
                self.commands.append(last)
                self.own_options(head, "")
            elif last:
                last.text = f"{last.text} {line.strip()}".strip()
        # The short options of a command, "ping [-c N]", are listed with their long form.
        for option in [option for option in self.options if option.short and not option.long]:
            for other in self.options:
                if other is not option and other.short == option.short:
                    other.commands += option.commands
                    self.options.remove(option)
                    break

    def option(self, head, text, command=None):
        match = re.fullmatch(r"(?:(-\w))?(?:, )?(?:(--[\w-]+))?(?: ([A-Z]\w*))?", head)
        if not match:
            raise SystemExit(f"this is no option: {head}")
        short, name, argument = (group or "" for group in match.groups())
        for option in self.options:
            if command and option.names() == [word for word in (short, name) if word]:
                break
        else:
            option = Option(short, name, argument, text)
            self.options.append(option)
        if command:
            option.commands.append(command)
        return option

    def own_options(self, head, text):
        found = None
        for own in re.findall(r"\[(-[^]]*)\]", head):
            found = self.option(own, text, self.commands[-1].words[0])
        return found

    def first_words(self):
        """{word: text}"""
        found = {}
        for command in self.commands:
            found.setdefault(command.words[0], command.text)
        return found

    def second_words(self):
        """{word: words that follow it}"""
        found = {}
        for command in self.commands:
            if len(command.words) > 1:
                found.setdefault(command.words[0], []).append(command.words[1])
        return found


def phrase(text):
    """The first sentence of a text, short enough for a line."""
    return re.split(r"[;.](?: |$)| \(", text.removeprefix("or "))[0]


def quote(text):
    return shlex.quote(text)


def header(program):
    return f"# Made from `{program} --help`.\n"


def bash(program, usage):
    taking = [option for option in usage.options if option.argument]
    lines = [header(program), f"_{program}()", "{",
             "\tlocal current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}",
             "\tlocal command= second= words i", "", "\tCOMPREPLY=()", "\tcase $previous in"]
    for option in taking:
        lines.append(f"\t{' | '.join(option.names())})")
        if option.is_file():
            lines += ["\t\tcompopt -o filenames",
                      "\t\tmapfile -t COMPREPLY < <(compgen -f -- \"$current\")"]
        elif option.values():
            lines.append("\t\tmapfile -t COMPREPLY < <(compgen -W "
                         f"{quote(' '.join(option.values()))} -- \"$current\")")
        lines += ["\t\treturn", "\t\t;;"]
    lines += ["\tesac"]
    if usage.commands:
        names = " | ".join(name for option in taking for name in option.names())
        lines += ["\tfor ((i = 1; i < COMP_CWORD; i++)); do", "\t\tcase ${COMP_WORDS[i]} in"]
        lines += [f"\t\t{names}) i=$((i + 1)) ;;"] if names else []
        lines += ["\t\t-*) ;;", "\t\t*) if [ -z \"$command\" ]; then command=${COMP_WORDS[i]}; "
                  "else second=${COMP_WORDS[i]}; fi ;;", "\t\tesac", "\tdone"]
    lines += ["\tif [[ $current == -* ]]; then",
              f"\t\twords={quote(' '.join(n for o in usage.options if not o.commands for n in o.names()))}"]
    if any(option.commands for option in usage.options):
        lines.append("\t\tcase $command in")
        for word in usage.first_words():
            own = [n for o in usage.options if word in o.commands for n in o.names()]
            if own:
                lines.append(f"\t\t{word}) words+={quote(' ' + ' '.join(own))} ;;")
        lines.append("\t\tesac")
    if usage.commands:
        lines.append("\telif [ -z \"$command\" ]" + (" || true" if usage.repeats else "") + "; then")
        lines.append(f"\t\twords={quote(' '.join(usage.first_words()))}")
        lines += ["\telif [ -z \"$second\" ]; then", "\t\tcase $command in"]
        lines += [f"\t\t{word}) words={quote(' '.join(after))} ;;"
                  for word, after in usage.second_words().items()]
        lines += ["\t\tesac"]
    lines += ["\tfi", "\tmapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")", "}", "",
              f"complete -F _{program} {program}"]
    return "\n".join(lines) + "\n"


def zsh_option(option):
    names = option.names()
    text = re.sub(r"([\[\]:\\])", r"\\\1", phrase(option.text))
    spec = f"[{text}]" if text else ""
    if option.argument:
        spec += f":{option.argument.lower()}:"
        if option.is_file():
            spec += "_files"
        elif option.values():
            spec += f"({' '.join(option.values())})"
    # Of its two names one is enough.
    excluded = f"({' '.join(names)})" if len(names) > 1 else ""
    return [quote(excluded + name + spec) for name in names]


def zsh(program, usage):
    lines = [f"#compdef {program}", header(program), "local -a arguments commands",
             "local context state state_descr line", "typeset -A opt_args", "arguments=("]
    lines += [f"\t{spec}" for option in usage.options if not option.commands
              for spec in zsh_option(option)]
    lines.append(")")
    for option in usage.options:
        for command in option.commands:
            lines.append(f"(( ${{words[(I){command}]}} )) && "
                         f"arguments+=({' '.join(zsh_option(option))})")
    if usage.commands:
        lines.append("commands=(")
        for word, text in usage.first_words().items():
            lines.append("\t" + quote(word + ":" + phrase(text).replace(":", "\\:")))
        lines.append(")")
        lines.append("arguments+=(" + ("'*: :->command'" if usage.repeats
                                       else "'1: :->command' '2: :->second'") + ")")
    lines += ["_arguments -C $arguments && return 0", "case $state in"]
    if usage.commands:
        lines.append(f"command) _describe -t commands {quote(program + ' command')} commands ;;")
    if usage.second_words():
        lines.append("second)")
        lines.append("\tcase $line[1] in")
        lines += [f"\t{word}) compadd {' '.join(after)} ;;"
                  for word, after in usage.second_words().items()]
        lines += ["\tesac", "\t;;"]
    lines.append("esac")
    return "\n".join(lines) + "\n"


def fish_quote(text):
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def fish(program, usage):
    lines = [header(program) + f"complete -c {program} -f"]
    for word, text in usage.first_words().items():
        where = "" if usage.repeats else " -n __fish_use_subcommand"
        lines.append(f"complete -c {program}{where} -a {word} -d {fish_quote(phrase(text))}")
    for word, after in usage.second_words().items():
        condition = f"__fish_seen_subcommand_from {word}; and not __fish_seen_subcommand_from {' '.join(after)}"
        lines.append(f"complete -c {program} -n {fish_quote(condition)} -a {fish_quote(' '.join(after))}")
    for option in usage.options:
        line = f"complete -c {program}"
        if option.commands:
            line += f" -n {fish_quote('__fish_seen_subcommand_from ' + ' '.join(option.commands))}"
        if option.short:
            line += f" -s {option.short[1:]}"
        if option.long:
            line += f" -l {option.long[2:]}"
        if option.is_file():
            line += " -r -F"
        elif option.values():
            line += f" -x -a {fish_quote(' '.join(option.values()))}"
        elif option.argument:
            line += " -x"
        if option.text:
            line += f" -d {fish_quote(phrase(option.text))}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", required=True)
    parser.add_argument("program")
    options = parser.parse_args()

    name = os.path.basename(options.program)
    done = subprocess.run([options.program, "--help"], check=True, capture_output=True, text=True)
    usage = Usage(done.stdout)
    for file_name, make in ((name, bash), (f"_{name}", zsh), (f"{name}.fish", fish)):
        with open(os.path.join(options.output, file_name), "w", encoding="utf-8") as file:
            file.write(make(name, usage))


if __name__ == "__main__":
    main()
