"""Read vLLM's command line from its wheels' sources and write src/trimtab/engines/data/vllm_flags.json.

    pip download --no-deps vllm==0.25.1 && unzip -q vllm-0.25.1*.whl '*.py' -d 0.25.1
    python scripts/vllm_flags.py --read-on 2026-11-30 0.17.1=DIR 0.25.1=DIR …      write the table
    python scripts/vllm_flags.py --check 0.25.1=DIR                                compare that version

Nothing of vLLM is imported or run: the argparse calls, the config classes that give their types, the
environment variables, the parsers and the architectures are read with ``ast``. Every version that the
table shall know must be named when it is written. `--help` text isn't copied.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[1] / "src" / "trimtab" / "engines" / "data" / "vllm_flags.json"
# It moved in 0.30 and again in 0.33.
ARGS_FILES = tuple(f"vllm/entrypoints/{folder}/cli_args.py" for folder in ("openai", "launchers", "common"))
# Integers that take 8k or 8K (engine/arg_utils.py _compute_kwargs); which ones is read per version.
SIZE_TYPES = ("human_readable_int", "human_readable_int_or_auto")
Hint = tuple[str, Any]  # ("bool", None), ("literal", [values]), ("dataclass", name), ("other", name) …
BUILTINS = {"bool", "int", "float", "str", "dict", "list", "tuple", "set", "None"}


class Wheel:
    """The unpacked sources of one version, parsed as they are asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path_of(self, module: str) -> Path | None:
        """The file of a module, or None outside vLLM."""
        base = self.root / module.replace(".", "/")
        return next((p for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file()), None)

    @functools.cache  # noqa: B019  # lives as long as the script
    def names_in(self, module: str) -> dict[str, ast.AST]:
        """Top-level names of a module, as bound at run time (the else branch of TYPE_CHECKING)."""
        path = self.path_of(module)
        names: dict[str, ast.AST] = {}
        if path is not None:
            for node in _statements(ast.parse(path.read_text()).body):
                names |= dict(_bound(node))
        return names

    def find(self, module: str, name: str) -> tuple[str, ast.AST] | None:
        """Where a name is really defined: its module and its class or value; None outside vLLM."""
        node = self.names_in(module).get(name)
        if isinstance(node, ast.ImportFrom):
            source = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
            return self.find(self._absolute(module, node), source)
        return (module, node) if node is not None else None

    def _absolute(self, module: str, node: ast.ImportFrom) -> str:
        """The module that an import names, relative ones resolved."""
        if not node.level:
            return node.module or ""
        is_package = (self.root / module.replace(".", "/")).is_dir()
        parts = module.split(".")[: len(module.split(".")) - node.level + is_package]
        return ".".join([*parts, *([node.module] if node.module else [])])

    def fields_of(self, module: str, name: str) -> dict[str, tuple[str, ast.expr]]:
        """Annotated fields of a config class with those of its bases: name → (module, annotation)."""
        found = self.find(module, name)
        if found is None or not isinstance(found[1], ast.ClassDef):
            return {}
        where, node = found
        fields: dict[str, tuple[str, ast.expr]] = {}
        for base in node.bases:
            if isinstance(base, ast.Name):
                fields |= self.fields_of(where, base.id)
        for item in node.body:
            if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
                continue
            if "ClassVar" not in ast.dump(item.annotation):
                fields[item.target.id] = (where, item.annotation)
        return fields

    def hints(self, module: str, node: ast.expr) -> list[Hint]:
        """The possible types of an annotation, unions taken apart and aliases followed."""
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                return self.hints(module, ast.parse(node.value, mode="eval").body)
            return [("None", None)]
        if isinstance(node, ast.BinOp):
            return self.hints(module, node.left) + self.hints(module, node.right)
        if isinstance(node, ast.Subscript):
            return self._subscript(module, node)
        if isinstance(node, ast.Name):
            return self._named(module, node.id)
        return [("other", ast.unparse(node))]

    def _subscript(self, module: str, node: ast.Subscript) -> list[Hint]:
        outer = ast.unparse(node.value)
        inner = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
        if outer == "Literal":
            return [("literal", [value for item in inner for value in self._literals(module, item)])]
        if outer in {"Union", "Optional"}:
            extra: list[Hint] = [("None", None)] if outer == "Optional" else []
            return [hint for item in inner for hint in self.hints(module, item)] + extra
        if outer in {"Annotated", "SkipValidation"}:
            return self.hints(module, inner[0])
        return [(outer, None) if outer in BUILTINS else ("other", outer)]

    def _literals(self, module: str, node: ast.expr) -> list[Any]:
        if isinstance(node, ast.Constant):
            return [node.value]
        return [value for kind, values in self.hints(module, node) if kind == "literal" for value in values]

    def _named(self, module: str, name: str) -> list[Hint]:
        if name in BUILTINS:
            return [(name, None)]
        found = self.find(module, name)
        if found is None:
            return [("other", name)]
        where, node = found
        if isinstance(node, ast.ClassDef):
            is_config = any("dataclass" in ast.unparse(d) or "config" in ast.unparse(d)
                            for d in node.decorator_list)  # fmt: skip
            is_dict = any("dict" in ast.unparse(base).lower() for base in node.bases)
            return [("dataclass" if is_config else "dict" if is_dict else "other", name)]
        if isinstance(node, ast.expr) and not (isinstance(node, ast.Name) and node.id == "Any"):
            return self.hints(where, node)
        return [("other", name)]


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, ast.If):
            is_typing = "TYPE_CHECKING" in ast.unparse(node.test)
            yield from _statements([] if is_typing and node.orelse else node.body)
            yield from _statements(node.orelse)
        elif isinstance(node, ast.Try):
            yield from _statements(node.body)
        else:
            yield node


def _bound(node: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.ImportFrom):
        yield from ((alias.asname or alias.name, node) for alias in node.names)
    elif isinstance(node, ast.ClassDef | ast.FunctionDef):
        yield node.name, node
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        yield node.targets[0].id, node.value
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
        yield node.target.id, node.value


def kind_of(hints: list[Hint], name: str, size_names: frozenset[str]) -> dict[str, Any]:
    """Kind and choices as ``_compute_kwargs`` of vLLM's arg_utils.py derives them from the type."""
    kinds = {kind for kind, _ in hints}
    if "literal" in kinds and not kinds & {"dataclass", "bool"}:
        choices = sorted(next(values for kind, values in hints if kind == "literal"), key=str)
        word = "suggested" if "str" in kinds else "choices"
        return {"kind": "integer" if isinstance(choices[0], int) else "text", word: choices}
    rules = (  # the first that holds wins
        ("json", "dataclass" in kinds),
        ("switch_or_text", kinds == {"bool", "str", "None"}),
        ("switch", "bool" in kinds),
        ("list", bool(kinds & {"tuple", "list", "set"})),
        ("size", "int" in kinds and name in size_names),
        ("integer", "int" in kinds),
        ("number", "float" in kinds),
        ("json", "dict" in kinds and not kinds - {"dict", "None"}),
        ("json_or_text", "dict" in kinds),
        ("text", True),
    )
    return {"kind": next(kind for kind, holds in rules if holds)}


class Reader:
    """Collects the options of one version."""

    def __init__(self, wheel: Wheel, engine_module: str, front_module: str) -> None:
        self.wheel, self.engine, self.front = wheel, engine_module, front_module
        text = (wheel.path_of(engine_module) or Path()).read_text()
        compute = next(
            node for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef) and node.name == "_compute_kwargs"
        )  # fmt: skip
        # Names compared with `name`, as strings or as a set of strings.
        self.size_names = frozenset(
            node.value for node in ast.walk(compute)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier()
            and ("max_" in node.value or "_bytes" in node.value or "_size" in node.value)
        )  # fmt: skip
        self.flags: dict[str, dict[str, Any]] = {}

    def read(self) -> dict[str, dict[str, Any]]:
        """Argument name → options, kind, choices, is_deprecated."""
        for name in ("EngineArgs", "AsyncEngineArgs"):
            found = self.wheel.find(self.engine, name)
            assert found is not None, name
            self._read_calls(self.engine, found[1])
        self._read_frontend()
        return self.flags

    def _read_calls(self, module: str, tree: ast.AST) -> None:
        """``group.add_argument(…)`` calls of a class or function, in order of the lines."""
        classes: dict[str, str] = {}  # variable → config class, or "class.field"
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Assign | ast.Call | ast.Expr)]
        for node in sorted(nodes, key=lambda item: (item.lineno, item.col_offset)):
            if isinstance(node, ast.Assign):
                self._note_assign(node, classes)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr == "add_argument":
                    self._add(module, node, classes)
                elif node.func.attr == "remove" and ast.unparse(node.func.value).endswith("['choices']"):
                    # parallel_kwargs["all2all_backend"]["choices"].remove(NAME): not offered to users
                    _, value = self.wheel.find(module, ast.unparse(node.args[0])) or (module, node.args[0])
                    classes[ast.unparse(node.func.value).removesuffix("['choices']") + ":without"] = (
                        ast.literal_eval(value)
                    )

    def _note_assign(self, node: ast.Assign, classes: dict[str, str]) -> None:
        target, value = node.targets[0], ast.unparse(node.value)
        if isinstance(target, ast.Name) and value.startswith("get_kwargs("):
            inner, _, rest = value.removeprefix("get_kwargs(").partition(")")
            classes[target.id] = inner + (f".{rest.strip('[]').strip(chr(39))}" if rest else "")
        elif isinstance(target, ast.Name) and isinstance(node.value, ast.Subscript):
            owner = ast.unparse(node.value.value)
            if owner in classes and isinstance(node.value.slice, ast.Constant):
                classes[target.id] = f"{classes[owner]}.{node.value.slice.value}"
        elif ast.unparse(target).endswith("['type']") and "json.loads" in value:
            classes[ast.unparse(target).removesuffix("['type']") + ":type"] = "json"

    def _add(self, module: str, call: ast.Call, classes: dict[str, str]) -> None:
        options = [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
        if not options or not str(options[0]).startswith("-"):
            return
        entry: dict[str, Any] = {"options": options, "kind": "text"}
        for keyword in call.keywords:
            if keyword.arg is None:
                entry |= self._spread(module, keyword.value, classes)
        entry |= self._explicit(module, {k.arg: k.value for k in call.keywords if k.arg})
        long = next(option for option in options if option.startswith("--"))
        self.flags[long.removeprefix("--").replace("-", "_")] = entry

    def _spread(self, module: str, node: ast.expr, classes: dict[str, str]) -> dict[str, Any]:
        """``**kwargs["field"]``, also inside ``{**…, "default": None}``: the config field's type."""
        if isinstance(node, ast.Dict):
            return self._spread(module, node.values[0], classes)
        if isinstance(node, ast.Name):
            owner, _, field = classes[node.id].rpartition(".")
        else:
            assert isinstance(node, ast.Subscript), ast.unparse(node)
            owner, field = classes[ast.unparse(node.value)], ast.literal_eval(node.slice)
        if f"{ast.unparse(node)}:type" in classes:
            return {"kind": "json"}
        where, annotation = self.wheel.fields_of(module, owner)[field]
        entry = kind_of(self.wheel.hints(where, annotation), field, self.size_names)
        dropped = classes.get(f"{ast.unparse(node)}:without")
        return {k: [c for c in v if c != dropped] if k == "choices" else v for k, v in entry.items()}

    def _explicit(self, module: str, given: dict[str, ast.expr]) -> dict[str, Any]:
        entry: dict[str, Any] = {}
        action = ast.unparse(given["action"]) if "action" in given else ""
        if "BooleanOptionalAction" in action:
            entry["kind"] = "switch"
        elif action in {"'store_true'", "'store_false'"}:
            entry["kind"] = "switch_on"
        elif "type" in given:
            entry["kind"] = {"int": "integer", "float": "number"}.get(ast.unparse(given["type"]), "text")
        if "nargs" in given and ast.literal_eval(given["nargs"]) == "?":
            entry["kind"] = "switch_or_text"
        if "choices" in given:
            entry["choices"] = self._choices(module, given["choices"])
        if (
            "deprecated" in given
            or "Deprecated" in action
            or "DEPRECAT" in ast.unparse(given.get("help", ast.Constant("")))
        ):
            entry["is_deprecated"] = True
        return entry

    def _choices(self, module: str, node: ast.expr) -> list[Any]:
        if isinstance(node, ast.List):
            return sorted(ast.literal_eval(node))
        if isinstance(node, ast.BinOp):  # a list plus what the platform adds: CUDA's name
            return sorted([*ast.literal_eval(node.left), "cuda"])
        assert isinstance(node, ast.Call), ast.unparse(node)
        name = ast.unparse(node.args[0])
        return sorted(
            value for kind, values in self.wheel.hints(module, ast.Name(name)) for value in values or ()
        )

    def _read_frontend(self) -> None:
        """FrontendArgs: one flag per field, some with a type of their own."""
        module = self.front
        found = self.wheel.find(module, "make_arg_parser")
        assert found is not None
        self._read_calls(module, found[1])
        tree = ast.parse((self.wheel.path_of(module) or Path()).read_text())
        changes = " ".join(
            ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Assign | ast.Delete)
        )
        for name, (where, annotation) in self.wheel.fields_of(module, "FrontendArgs").items():
            entry = kind_of(self.wheel.hints(where, annotation), name, self.size_names)
            key = f"frontend_kwargs['{name}']"
            if f"{key}['type'] = json.loads" in changes:
                entry = {"kind": "json"}
            elif f"{key}['action'] = 'append'" in changes:
                entry = {"kind": "text"}
            self.flags[name] = {"options": [f"--{name.replace('_', '-')}"], **entry}


def _dict_keys(wheel: Wheel, module: str, names: tuple[str, ...] | None) -> list[str]:
    """String keys of the named top-level dictionaries, or of every `_…_MODELS` one."""
    keys: set[str] = set()
    for name, node in wheel.names_in(module).items():
        is_asked = (
            name in names
            if names
            else name.endswith("_MODELS") and "PREVIOUS" not in name and "OOT" not in name
        )
        if is_asked and isinstance(node, ast.Dict):
            keys |= {key.value for key in node.keys if isinstance(key, ast.Constant)}
    return sorted(keys)


def read_version(root: Path) -> dict[str, Any]:
    """Everything about one version."""
    wheel = Wheel(root)
    front = next(name for name in ARGS_FILES if (root / name).is_file())
    engine = "vllm.engine.arg_utils"
    return {
        "flags": Reader(wheel, engine, front.removesuffix(".py").replace("/", ".")).read(),
        "env": _dict_keys(wheel, "vllm.envs", ("environment_variables",)),
        "reasoning_parsers": _dict_keys(wheel, "vllm.reasoning", ("_REASONING_PARSERS_TO_REGISTER",)),
        "tool_parsers": _dict_keys(wheel, "vllm.tool_parsers", ("_TOOL_PARSERS_TO_REGISTER",)),
        "architectures": _dict_keys(wheel, "vllm.model_executor.models.registry", None),
    }


def spans(versions: list[str], has: list[bool]) -> str:
    """Where something exists: "0.17.1-0.25.1", several spans with commas, one version alone."""
    parts: list[str] = []
    start: int | None = None
    for index, present in enumerate([*has, False]):
        if present and start is None:
            start = index
        elif not present and start is not None:
            first, last = versions[start], versions[index - 1]
            parts.append(first if first == last else f"{first}-{last}")
            start = None
    return ",".join(parts)


def merge(read: dict[str, dict[str, Any]], *, read_on: str) -> dict[str, Any]:
    """One table of all versions: what is equal stands once, with the versions that have it."""
    versions = list(read)
    flags: dict[str, list[dict[str, Any]]] = {}
    for name in sorted({name for one in read.values() for name in one["flags"]}):
        forms = {json.dumps(one["flags"][name]): None for one in read.values() if name in one["flags"]}
        flags[name] = [
            {**json.loads(form), "in": spans(
                versions, [json.dumps(read[v]["flags"].get(name)) == form for v in versions])}
            for form in forms
        ]  # fmt: skip
    lists = {
        part: {
            item: spans(versions, [item in read[version][part] for version in versions])
            for item in sorted({item for one in read.values() for item in one[part]})
        }
        for part in ("env", "reasoning_parsers", "tool_parsers", "architectures")
    }
    return {"read_on": read_on, "source": "scripts/vllm_flags.py on the sources of the PyPI wheels",
            "versions": versions, "flags": flags, **lists}  # fmt: skip


def render(table: dict[str, Any]) -> str:
    """JSON with one flag or name a line, so that a new version shows as a readable difference."""
    lines = ["{"]
    for key, value in table.items():
        if isinstance(value, dict):
            rows = [
                f"  {json.dumps(name)}: {json.dumps(item, separators=(',', ':'))}"
                for name, item in value.items()
            ]
            lines.append(f" {json.dumps(key)}: {{\n" + ",\n".join(rows) + "\n },")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)},")
    lines[-1] = lines[-1].removesuffix(",")
    return "\n".join([*lines, "}"]) + "\n"


def _cut(table: dict[str, Any], version: str) -> dict[str, Any]:
    """What a table says about one version, in the form of read_version."""
    versions: list[str] = table["versions"]
    index = versions.index(version)

    def holds(text: str) -> bool:
        ends = [part.split("-") for part in text.split(",")]
        return any(versions.index(end[0]) <= index <= versions.index(end[-1]) for end in ends)

    flags = {name: {key: value for key, value in form.items() if key != "in"}
             for name, forms in table["flags"].items() for form in forms if holds(form["in"])}  # fmt: skip
    parts = ("env", "reasoning_parsers", "tool_parsers", "architectures")
    return {"flags": flags, **{part: sorted(k for k, v in table[part].items() if holds(v)) for part in parts}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare with the table instead of writing it")
    parser.add_argument("--read-on", default="", help="the date to record, YYYY-MM-DD")
    parser.add_argument("wheels", nargs="+", metavar="VERSION=DIR")
    args = parser.parse_args()
    read = {
        version: read_version(Path(root))
        for version, _, root in (item.partition("=") for item in args.wheels)
    }
    if not args.check:
        TABLE.write_text(render(merge(read, read_on=args.read_on)))
        return
    table = json.loads(TABLE.read_text())
    wrong = [version for version, one in read.items() if _cut(table, version) != one]
    if wrong:
        sys.exit(f"the table differs from the sources of {', '.join(wrong)}")


if __name__ == "__main__":
    main()
