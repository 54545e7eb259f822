"""Sum of a batch's slices in one order, for any assignment to ranks."""

from __future__ import annotations

from torch import Tensor


class TreeSum:
    """Adds tensors along a binary tree whose leaves are the slices 0 to `leaves` - 1.

    Floating-point sums depend on their order. Here the order depends on the number of slices alone:
    the tree is that of the smallest power of two, a node is the sum of its two children, and a node
    with one child, as not all leaves exist, equals that child: no zero is added. So a rank with
    consecutive slices can add those that make up whole subtrees, and another rank can add these
    sums further, bit-identical to one process.

    Holds at most one tensor per level of the tree.

    Example:
        >>> tree = TreeSum(4)
        >>> for slice, gradient in enumerate(gradients):
        ...     tree.add(range(slice, slice + 1), gradient)
        >>> tree.total()  # (g0 + g1) + (g2 + g3)
    """

    def __init__(self, leaves: int) -> None:
        if leaves < 1:
            raise ValueError(f"leaves must be at least 1, got {leaves}")
        self.leaves = leaves
        self.roots: list[tuple[range, Tensor]] = []
        """Fewest whole subtrees of the added leaves: their leaves, and their sums."""

    def add(self, leaves: range, values: Tensor) -> None:
        """Add the sum of one whole subtree; `values` may be overwritten later.

        Args:
            leaves: The leaves of the subtree, which follow those added before.
            values: Their sum, any floating dtype, of one shape for all.

        Raises:
            ValueError: If `leaves` do not follow those before, or are out of range.
        """
        before = self.roots[-1][0].stop if self.roots else leaves.start
        if leaves.start != before or not 0 <= leaves.start < leaves.stop <= self.leaves:
            raise ValueError(
                f"slices [{leaves.start}, {leaves.stop}) do not follow slice {before - 1} of "
                f"{self.leaves}; add them in order, each once"
            )
        while self.roots and are_siblings(self.roots[-1][0], leaves, self.leaves):
            left, total = self.roots.pop()
            leaves, values = range(left.start, leaves.stop), total.add_(values)
        self.roots.append((leaves, values))

    def total(self) -> Tensor:
        """Return the sum of all leaves, of their shape."""
        if not self.roots or self.roots[0][0] != range(self.leaves):
            added = [f"[{leaves.start}, {leaves.stop})" for leaves, _ in self.roots]
            raise ValueError(f"of {self.leaves} slices only {added} were added")
        return self.roots[0][1]


def subtrees(leaves: range, total: int) -> list[range]:
    """Return the fewest whole subtrees with exactly `leaves`, in a tree of `total` leaves.

    These are the roots of a `TreeSum` to which the leaves were added one by one.
    """
    roots: list[range] = []
    for leaf in leaves:
        root = range(leaf, leaf + 1)
        while roots and are_siblings(roots[-1], root, total):
            root = range(roots.pop().start, root.stop)
        roots.append(root)
    return roots


def are_siblings(left: range, right: range, total: int) -> bool:
    """Return whether two adjacent subtrees are the children of one node."""
    width = len(left)
    is_whole = width & (width - 1) == 0 and left.start % (2 * width) == 0
    return is_whole and right.stop == min(left.start + 2 * width, total)
