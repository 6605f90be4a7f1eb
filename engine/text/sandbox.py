"""The Jinja environment in which chat templates run: nothing to execute, bounded work, and every string's source kept.

Jinja's immutable sandbox keeps templates away from Python's insides. On top of it:
- only the filters, tests, functions and methods that chat templates need exist at all (`allowed`);
- loops, macros, comparisons, calls, operators and outputs spend from a `Budget`, for large results in advance;
- what a template does with a caller's text is followed by `Sourced`; whatever is not followed exactly becomes foreign.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from string import Formatter
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Cycler, Joiner, Namespace
from jinja2.visitor import NodeTransformer

from engine.text import allowed
from engine.text.budget import MAX_INTEGER_BITS, MAX_PADDING, BoundsError, current, has_foreign
from engine.text.provenance import Sourced, foreign, joined, own

_STR_METHODS = frozenset(
    (
        *("strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "split", "rsplit", "splitlines", "partition"),
        *("rpartition", "replace", "join", "upper", "lower", "title", "capitalize", "casefold", "swapcase"),
        *("startswith", "endswith", "find", "rfind", "index", "rindex", "count", "isdigit", "isalpha", "isalnum"),
        *("isspace", "isupper", "islower", "istitle", "isdecimal", "isnumeric", "isidentifier", "isascii"),
        *("isprintable", "zfill", "center", "ljust", "rjust", "expandtabs"),
    )
)
_PADDING_METHODS = frozenset(("zfill", "center", "ljust", "rjust", "expandtabs"))
_CONTAINER_METHODS = frozenset(("get", "items", "keys", "values", "copy", "index", "count"))


class Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's words for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012  jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        """Give the body as a scope of its own."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment; one serves any number of templates and threads."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[LoopControlExtension, Generation],
            # Folding constants would run a template's expressions while it is compiled.
            optimized=False,
            finalize=_finalize,
        )
        self.globals = {
            **{name: self.globals[name] for name in ("range", "cycler", "joiner")},
            **allowed.FUNCTIONS,
        }
        counting: dict[str, Callable[..., Any]] = {"_step": _step, "_look": _look, "_concat": _concat}
        self.filters = allowed.filters(self.filters) | counting
        jinja_tests: Mapping[str, Any] = self.tests
        self.tests = dict[str, Any](allowed.tests(jinja_tests))
        self._functions = {id(function) for function in self.globals.values()}

    def prepared(self, source: str) -> types.CodeType:
        """Compile a template with its steps counted. Raises jinja2.TemplateSyntaxError, SecurityError."""
        tree = _Counted().visit(self.parse(source))
        code: types.CodeType = self.compile(tree)
        return code

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """What macros, blocks and `set` blocks are put together with."""
        parts = list(parts)
        current().need_chars(sum(map(len, parts)))
        return joined("", parts)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """As the sandbox; a tuple as key is weighed first, since its hash walks all of it."""
        if isinstance(argument, tuple):
            current().spend_on(argument)
        return super().getitem(obj, argument)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format` without access to Python's insides and without endless padding."""
        if not isinstance(value, (types.MethodType, types.BuiltinMethodType)):
            return None
        pattern = value.__self__
        if not isinstance(pattern, str) or value.__name__ not in ("format", "format_map"):
            return None
        return _BoundFormat(self, pattern, value.__name__ == "format_map")

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call what templates may call, and nothing else."""
        current().spend()
        receiver = getattr(__obj, "__self__", None)
        if isinstance(receiver, str):
            return _call_text(receiver, __obj.__name__, args, kwargs)
        allowed_method = isinstance(receiver, list | tuple | Mapping) and __obj.__name__ in _CONTAINER_METHODS
        if allowed_method:
            if __obj.__name__ in ("index", "count", "get"):
                current().spend_on((args, receiver) if __obj.__name__ != "get" else args)
        elif not (
            isinstance(__obj, Macro | LoopContext | BlockReference | Joiner | Undefined | _BoundFormat)
            or isinstance(receiver, LoopContext | Cycler)
            or id(__obj) in __self._functions
        ):
            raise SecurityError(f"it calls {type(__obj).__name__} {getattr(__obj, '__name__', '')}".rstrip())
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Operators, with the size of their result told before it is made."""
        budget = current()
        budget.spend()
        if operator == "%" and isinstance(left, str):
            return allowed.percent(left, right)
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            budget.need_chars(len(left) + len(right))
        elif operator == "+" and isinstance(left, list | tuple) and isinstance(right, list | tuple):
            budget.need_items(len(left) + len(right))
        elif operator == "*":
            _allow_product(left, right)
            _allow_product(right, left)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _allow_bits(left.bit_length() * max(right, 0))
        result = self.binop_table[operator](left, right)
        if isinstance(result, int):
            _allow_bits(result.bit_length())
        return result


class _BoundFormat:
    """The `format` of one string."""

    def __init__(self, sandbox: Sandbox, pattern: str, takes_map: bool) -> None:
        self._sandbox, self._pattern, self._takes_map = sandbox, pattern, takes_map

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        if self._takes_map:
            kwargs = dict(args[0])
            args = ()
        is_foreign = has_foreign((self._pattern, args, kwargs), current())
        text = _PlainFormatter(self._sandbox).vformat(str.__str__(self._pattern), args, kwargs)
        current().need_chars(len(text))
        return foreign(text) if is_foreign else text


class _PlainFormatter(SandboxedFormatter):
    """Python's formatter through the sandbox's attribute access, with bounded widths."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        """As `Formatter.format_field`."""
        allowed.check_widths(format_spec)
        return Formatter.format_field(self, allowed.stringify(value) if not format_spec else value, format_spec)


class _Counted(NodeTransformer):
    """Rewrites a template so that its work is counted, and so that `~` keeps the source of what it joins."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        """A step for each turn, and for each item that the loop's own condition leaves out."""
        self.generic_visit(node)
        node.body.insert(0, _step_statement(node))
        if node.test is not None:
            node.test = nodes.And(_filter(nodes.Const(True), "_step", node), node.test, lineno=node.lineno)
        return node

    def _visit_body(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _step_statement(node))
        return node  # type: ignore[no-any-return]

    visit_Macro = visit_CallBlock = visit_Block = visit_FilterBlock = _visit_body  # noqa: N815

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        """`a ~ b` through `_concat`."""
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), "_concat", node)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        """Both sides are looked at first: comparing nested lists can take for ever."""
        self.generic_visit(node)
        node.expr = _looked(node.expr)
        for operand in node.ops:
            operand.expr = _looked(operand.expr)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802
        """A key of a dict is hashed, which walks all of it."""
        self.generic_visit(node)
        node.key = _looked(node.key)
        return node

    def _refuse(self, node: nodes.Node) -> nodes.Node:
        raise SecurityError(f"line {node.lineno}: it loads another template")

    visit_Include = visit_Import = visit_FromImport = visit_Extends = _refuse  # noqa: N815


def _filter(value: nodes.Expr, name: str, near: nodes.Node) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None, lineno=near.lineno)


def _looked(value: nodes.Expr) -> nodes.Expr:
    return value if isinstance(value, nodes.Const) else _filter(value, "_look", value)


def _step_statement(near: nodes.Node) -> nodes.ExprStmt:
    return nodes.ExprStmt(_filter(nodes.Const(True), "_step", near), lineno=near.lineno)


def _step(value: bool) -> bool:
    current().spend()
    return value


def _look(value: Any) -> Any:
    budget = current()
    if isinstance(value, str):
        budget.spend(1 + len(value) // 64)
    elif isinstance(value, list | tuple | Mapping | Namespace):
        budget.spend_on(value)
    else:
        budget.spend()
    return value


def _concat(parts: list[Any]) -> str:
    return Sandbox.concat(map(allowed.stringify, parts))


@pass_context  # a context argument also keeps Jinja from evaluating outputs while compiling
def _finalize(context: Context, value: Any) -> str:  # noqa: ARG001
    current().spend()
    return allowed.stringify(value)


def _call_text(receiver: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A method of a string, its result no larger than allowed and with its source kept."""
    if name not in _STR_METHODS:
        raise SecurityError(f"it calls the method {name!r} of a string")
    # Jinja passes these to everything it calls inside loops; only its own objects take them.
    kwargs = {key: value for key, value in kwargs.items() if key not in ("_loop_vars", "_block_vars")}
    budget = current()
    if name == "join" and args:
        args = (list(args[0]),)
        budget.need_items(len(args[0]))
        sizes = [len(part) for part in args[0] if isinstance(part, str)]
        budget.need_chars(sum(sizes) + len(receiver) * len(sizes))
    elif name == "replace":
        return allowed.replaced(receiver, *args, **kwargs)
    elif name in ("split", "rsplit", "splitlines"):
        separator = args[0] if args and isinstance(args[0], str) else None
        lines = name == "splitlines"
        budget.need_items(receiver.count(separator or "\n") if separator or lines else len(receiver.split()))
    elif name in _PADDING_METHODS:
        width = max((argument for argument in (*args, *kwargs.values()) if isinstance(argument, int)), default=8)
        if width > MAX_PADDING:
            raise BoundsError(f"it pads to {width:,} characters; at most {MAX_PADDING:,} are allowed")
        if name == "expandtabs":
            budget.need_chars(len(receiver) + receiver.count("\t") * width)
    budget.spend(1 + len(receiver) // 64)
    is_foreign = isinstance(receiver, Sourced) or has_foreign((args, kwargs), budget)
    if is_foreign:
        receiver = own(receiver)
    result = getattr(receiver, name)(*args, **kwargs)
    if isinstance(result, str) and not isinstance(result, Sourced) and is_foreign:
        return foreign(result)
    return result


def _allow_product(many: Any, count: Any) -> None:
    if not isinstance(count, int):
        return
    if isinstance(many, str):
        current().need_chars(len(many) * max(count, 0))
    elif isinstance(many, list | tuple):
        current().need_items(len(many) * max(count, 0))


def _allow_bits(bits: int) -> None:
    if bits > MAX_INTEGER_BITS:
        raise BoundsError(f"it computes a number of {bits:,} bits; at most {MAX_INTEGER_BITS:,} are allowed")
