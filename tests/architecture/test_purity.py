"""Pure by default: a module may do I/O only if it is on this list, and says so in its first line."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "trimtab"
# Modules that may touch the machine. A new one is a decision: it joins the list in the same change.
IO_MODULES = frozenset(
    {
        "__main__",
        "bench.connection",
        "bench.driver",
        "bench.endpoint",
        "cli.*",
        "gateway.admission_gate",
        "gateway.app",
        "gateway.descriptors",
        "gateway.door",
        "gateway.exchange",
        "gateway.external",
        "gateway.http_client",
        "gateway.http_connection",
        "gateway.http_date",
        "gateway.http_presence",
        "gateway.http_server",
        "gateway.key_ring",
        "gateway.large_body",
        "gateway.reasoning_source",
        "gateway.relay",
        "gateway.replica_route",
        "gateway.request_log",
        "gateway.upstream",
        "gateway.usage_log",
        "launcher.apply",
        "launcher.boot_times",
        "launcher.calibration",
        "launcher.calibration_store",
        "launcher.card_gate",
        "launcher.card_release",
        "launcher.control",
        "launcher.engine_sleep",
        "launcher.keeper",
        "launcher.liveness_watch",
        "launcher.own_limits",
        "launcher.log_files",
        "launcher.log_rotation",
        "launcher.sleepers",
        "launcher.state_folder",
        "launcher.supervise",
        "launcher.supervisor_search",
        "launcher.swapper",
        "launcher.watch",
        "probes.*",
        "runtimes.docker",
        "runtimes.docker_connection",
        "runtimes.docker_images",
        "runtimes.docker_lifeline",
        "runtimes.docker_start",
        "runtimes.docker_watch",
        "runtimes.guard",
        "runtimes.guarded_start",
        "runtimes.llama_cpp_host",
        "runtimes.local_process",
        "runtimes.process_table",
        "runtimes.routed",
        "runtimes.run_record",
        "runtimes.state_layout",
        "stackfile.foreign_read",
        "stackfile.foreign_yaml",
        "stackfile.read",
    }
)
# Libraries that reach the machine, the network, time or chance.
IO_LIBRARIES = frozenset(
    {
        "aiohttp",
        "asyncio",
        "ctypes",
        "docker",
        "fcntl",
        "httpx",
        "httpx2",
        "huggingface_hub",
        "io",
        "mmap",
        "os",
        "pathlib",
        "psutil",
        "pynvml",
        "random",
        "ray",
        "select",
        "shutil",
        "signal",
        "socket",
        "sqlite3",
        "ssl",
        "subprocess",
        "sys",
        "tempfile",
        "threading",
        "time",
        "urllib",
        "uuid",
        "uvloop",
        "xllamacpp",
        "yaml",
    }
)
# Pure uses of a library on the list above.
PURE_PATHS = frozenset({"PurePath", "PurePosixPath"})


def modules():
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield pytest.param(path, name, id=name or "trimtab")


def may_do_io(name):
    return name in IO_MODULES or f"{name.split('.')[0]}.*" in IO_MODULES


def imported_libraries(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            is_pure_path = node.module == "pathlib" and {alias.name for alias in node.names} <= PURE_PATHS
            if not is_pure_path:
                yield (node.module or "").split(".")[0]


@pytest.mark.parametrize(("path", "name"), list(modules()))
def test_only_listed_modules_import_io(path, name):
    """Whoever reads a pure module can be sure that it touches nothing."""
    used = IO_LIBRARIES & set(imported_libraries(ast.parse(path.read_text())))

    assert may_do_io(name) or not used, f"{name} imports {sorted(used)} and is not on the I/O list"


@pytest.mark.parametrize(("path", "name"), list(modules()))
def test_a_module_says_whether_it_is_pure(path, name):
    """The first line of a module tells what kind it is; packages only gather."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""

    if path.name == "__init__.py":
        assert text
    elif text.startswith("I/O."):
        assert may_do_io(name), f"{name} is not on the I/O list"
    else:
        assert text.startswith("Pure."), name
        assert not IO_LIBRARIES & set(imported_libraries(ast.parse(path.read_text())))


def test_every_name_on_the_list_exists():
    """The list does not outlive its modules."""
    names = {param.values[1] for param in modules()}

    assert {name for name in IO_MODULES if not name.endswith(".*")} <= names


def test_the_check_can_fail():
    """An import inside a function is seen as well as one at the top."""
    tree = ast.parse("def f():\n    import subprocess\n")

    assert set(imported_libraries(tree)) & IO_LIBRARIES == {"subprocess"}
