"""Transformers as graphs whose costs are counted, not measured: T5 (Raffel et al., JMLR 2020), and
an encoder or a decoder alone.

Times are floating-point operations over one rate, and so say how parts of the model relate, not how
long they take on a machine. Element-wise operators move their tensor at one bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.partition.graph import Edge, Graph, Node

FLOPS_PER_MS = 1e10
"""10 TFLOP/s: a card of 2018 in fp32."""
MOVED_FLOPS = 16.7
"""Operations for which there is time while such a card, with 600 GB/s, moves a byte."""
FP32 = 4


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of the model and its input; the defaults are T5-3B's for BoolQ."""

    layers: int = 24
    hidden: int = 1024
    inner: int = 4096
    """Width of all heads together."""
    feed: int = 16384
    heads: int = 32
    vocab: int = 32128
    source: int = 512
    """Tokens into the encoder."""
    target: int = 4
    """Tokens into the decoder; 0: the model is the first stack alone, and has no bias of
    positions."""
    outputs: int = 0
    """Width of the head; 0: the vocabulary, and the embedding's weight."""
    batch: int = 4
    bytes_per_parameter: int = 16
    """Weight, gradient and two states of the optimizer in fp32."""


def t5_graph(shape: Shape, *, blocks: bool = False) -> Graph:
    """The operators; `blocks`: one node a transformer block."""
    model = _Model(shape, blocks)
    out = model.stack("encoder", shape.source, None)
    if shape.target:
        out = model.stack("decoder", shape.target, out)
    wide, shared = shape.outputs or shape.vocab, "" if shape.outputs else "embedding"
    model.linear("head", [out], shape.target or shape.source, shape.hidden, wide, shared)
    edges = [Edge(source=a, target=b, bytes=size) for (a, b), size in model.edges.items()]
    return Graph(nodes=[*model.nodes.values()], edges=edges)


class _Model:
    def __init__(self, shape: Shape, blocks: bool) -> None:
        self.shape, self.blocks = shape, blocks
        self.nodes: dict[str, Node] = {}
        self.edges: dict[tuple[str, str], float] = {}
        self.made: dict[str, float] = {}
        """Bytes of each operator's output."""

    def stack(self, name: str, tokens: int, memory: str | None) -> str:
        """The encoder or the decoder; returns its output."""
        shape, numbers = self.shape, tokens * self.shape.hidden
        here = self.linear(f"{name}.embedding", [], tokens, 0, shape.hidden, "embedding")
        bias = None
        if shape.target:  # one for all samples
            bias = self.operator(f"{name}.bias", [], shape.heads * tokens * tokens / shape.batch)
        for layer in range(shape.layers):
            at = f"{name}.block{layer}"
            here = self.attention(f"{at}.self", here, here, tokens, tokens, bias)
            if memory is not None:
                here = self.attention(f"{at}.cross", here, memory, tokens, shape.source, None)
            normed = self.moved(f"{at}.norm", [here], numbers)
            wide = self.linear(f"{at}.wi", [normed], tokens, shape.hidden, shape.feed)
            wide = self.moved(f"{at}.relu", [wide], tokens * shape.feed)
            out = self.linear(f"{at}.wo", [wide], tokens, shape.feed, shape.hidden)
            here = self.moved(f"{at}.add", [here, out], numbers)
        return self.moved(f"{name}.norm", [here], numbers)

    def attention(
        self, at: str, here: str, memory: str, tokens: int, others: int, bias: str | None
    ) -> str:
        """Attention of `tokens` to `others`, with its norm and its residual; returns the output."""
        shape = self.shape
        normed = self.moved(f"{at}.norm", [here], tokens * shape.hidden)
        read = normed if memory == here else memory
        query = self.linear(f"{at}.q", [normed], tokens, shape.hidden, shape.inner)
        key = self.linear(f"{at}.k", [read], others, shape.hidden, shape.inner)
        value = self.linear(f"{at}.v", [read], others, shape.hidden, shape.inner)
        count, flops = shape.heads * tokens * others, 2 * tokens * others * shape.inner
        scores = self.operator(f"{at}.scores", [query, key], count, flops)
        scores = self.moved(f"{at}.softmax", [scores, *([bias] if bias else [])], count)
        mixed = self.operator(f"{at}.mix", [scores, value], tokens * shape.inner, flops)
        out = self.linear(f"{at}.o", [mixed], tokens, shape.inner, shape.hidden)
        return self.moved(f"{at}.add", [here, out], tokens * shape.hidden)

    def linear(
        self, name: str, read: list[str], tokens: int, wide: int, out: int, shared: str = ""
    ) -> str:
        """A matrix of `wide` x `out`; without `wide` an embedding, which is looked up in."""
        parameters = (wide or self.shape.vocab) * out
        return self.operator(name, read, tokens * out, 2 * tokens * wide * out, parameters, shared)

    def moved(self, name: str, read: list[str], numbers: int) -> str:
        """An operator that reads and writes so many numbers."""
        return self.operator(name, read, numbers, 2 * numbers * FP32 * MOVED_FLOPS)

    def operator(
        self, name: str, read: list[str], numbers: float, flops: float = 0.0,
        parameters: int = 0, shared: str = "",
    ) -> str:  # fmt: skip
        """Add an operator that makes `numbers` with `flops` for each sample; returns its name."""
        self.made[name] = numbers * FP32 * self.shape.batch
        node, scope = self._node(name)
        had = self.nodes.get(node, Node(id=node, forward_ms=0, backward_ms=0, bytes=0))
        forward = had.forward_ms + flops * self.shape.batch / FLOPS_PER_MS
        self.nodes[node] = Node(
            id=node, scope=scope, shared=[shared] if shared else [],
            forward_ms=forward, backward_ms=3 * forward, backward_kept_ms=2 * forward,
            bytes=had.bytes + parameters * self.shape.bytes_per_parameter,
            weight_bytes=had.weight_bytes + parameters * FP32,
        )  # fmt: skip
        for source in read:
            ends = self._node(source)[0], node
            if ends[0] != node:
                self.edges[ends] = max(self.edges.get(ends, 0.0), self.made[source])
        return name

    def _node(self, name: str) -> tuple[str, str]:
        """The id of an operator's node, and its scope."""
        stack, _, rest = name.partition(".")
        block, _, inner = rest.partition(".")
        if not block.startswith("block"):
            return name, f"T5[t5]/{name}"
        scope = f"T5[t5]/Stack[{stack}]/T5Block[{block}]/{inner}"
        return (f"{stack}.{block}" if self.blocks else name), scope
