"""Conditions on episodes, as text: `length >= 10 and success`. Parsed, never executed."""

import ast
import difflib
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from retold.schemas.errors import UsageError

Row = Mapping[str, Any]
Evaluate = Callable[[Row], Any]

_COMPARE: dict[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, group: item in group,
    ast.NotIn: lambda item, group: item not in group,
}
_COMBINE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}
_GRAMMAR = (
    "Write columns, numbers, 'texts', None, comparisons, in, and, or, not, + - * / % and len(), "
    "e.g. 'length >= 10 and success'"
)


def parse_condition(text: str, columns: Sequence[str]) -> Callable[[Row], bool]:
    """A function that says whether an episode's row meets a condition.

    A comparison with a value that is not there is false, but for `== None` and `!= None`.

    Raises:
        UsageError: the text is no condition, or names a column that does not exist.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"The condition {text!r} cannot be read. {_GRAMMAR}.") from error
    evaluate = _compile(tree, text, columns)

    def meets(row: Row) -> bool:
        try:
            return bool(evaluate(row))
        except (TypeError, ZeroDivisionError, OverflowError) as error:
            raise UsageError(
                f"The condition {text!r} cannot be evaluated for episode {row['episode_id']}: "
                f"{error}. Compare values of one kind."
            ) from error

    return meets


def _compile(node: ast.AST, text: str, columns: Sequence[str]) -> Evaluate:
    def compile_all(nodes: Sequence[ast.AST]) -> list[Evaluate]:
        return [_compile(item, text, columns) for item in nodes]

    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return lambda row: value
        case ast.Name(id=name):
            return _compile_column(name, columns)
        case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
            items = compile_all(elements)
            return lambda row: [item(row) for item in items]
        case ast.BoolOp(op=ast.And(), values=values):
            parts = compile_all(values)
            return lambda row: all(part(row) for part in parts)
        case ast.BoolOp(op=ast.Or(), values=values):
            parts = compile_all(values)
            return lambda row: any(part(row) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _compile(operand, text, columns)
            return lambda row: not inner(row)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _compile(operand, text, columns)
            return lambda row: None if inner(row) is None else -inner(row)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _COMBINE:
            return _compile_pair(_COMBINE[type(op)], *compile_all([left, right]))
        case ast.Compare(left=left, ops=ops, comparators=others) if all(
            type(op) in _COMPARE for op in ops
        ):
            return _compile_comparison(ops, compile_all([left, *others]))
        case ast.Call(func=ast.Name(id="len"), args=[argument], keywords=[]):
            inner = _compile(argument, text, columns)
            return lambda row: None if inner(row) is None else len(inner(row))
    raise UsageError(
        f"The condition {text!r} holds {ast.unparse(node)!r}, which it cannot. {_GRAMMAR}."
    )


def _compile_column(name: str, columns: Sequence[str]) -> Evaluate:
    if name not in columns:
        near = difflib.get_close_matches(name, columns, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Columns are {', '.join(columns)}."
        raise UsageError(f"Episodes have no column {name!r}. {hint}")
    return lambda row: row[name]


def _compile_pair(combine: Callable[[Any, Any], Any], one: Evaluate, two: Evaluate) -> Evaluate:
    def evaluate(row: Row) -> Any:
        left, right = one(row), two(row)
        return None if left is None or right is None else combine(left, right)

    return evaluate


def _compile_comparison(ops: Sequence[ast.cmpop], parts: Sequence[Evaluate]) -> Evaluate:
    def evaluate(row: Row) -> bool:
        values = [part(row) for part in parts]
        return all(
            _holds(op, left, right)
            for op, left, right in zip(ops, values, values[1:], strict=False)
        )

    return evaluate


def _holds(op: ast.cmpop, left: Any, right: Any) -> bool:
    is_equality = isinstance(op, ast.Eq | ast.NotEq)
    if right is None or (left is None and not is_equality):
        if is_equality:
            return (left is right) == isinstance(op, ast.Eq)
        return False
    return _COMPARE[type(op)](left, right)
