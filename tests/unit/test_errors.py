"""Pure. The exception tree: what scripts rely on."""

import inspect

import pytest

from trimtab import errors


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.StackFileError, 2),
        (errors.NoPlanError, 3),
        (errors.DoesNotFitError, 3),
        (errors.SloUnreachableError, 3),
        (errors.MissingFactError, 3),
        (errors.EnvironmentMissingError, 4),
        (errors.EngineStartError, 5),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_exit_codes_are_stable(kind, code):
    """A script tells outcomes apart by their exit codes."""
    assert kind("x").exit_code == code


def test_the_drawn_tree_is_the_real_one():
    """The tree in the module's text lists every exception."""
    kinds = {
        name
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.TrimtabError)
    }

    assert kinds == set(errors.__all__)
    assert {name for name in kinds if name not in (errors.__doc__ or "")} == set()


def test_an_error_keeps_message_and_hint_apart():
    """The hint is shown on its own line."""
    error = errors.EngineStartError("it died", hint="try more memory", log_tail=("last words",))

    assert (str(error), error.message, error.hint) == ("it died", "it died", "try more memory")
    assert error.log_tail == ("last words",)
