"""An encoder-decoder as a graph whose costs are counted, not measured: T5 (Raffel et al., JMLR
2020).

Times are floating-point operations over one rate, and so say how parts of the model relate, not how
long they take on a machine. Element-wise operators move their tensor at one bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from workbench.partition.graph import Edge, Graph, Node

FLOPS_PER_MS = 1e10
"""10 TFLOP/s: a card of 2018 in fp32."""
BYTES_PER_MS = 6e8
"""600 GB/s of such a card's memory."""
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
    """Tokens into the decoder."""
    batch: int = 4
    bytes_per_parameter: int = 16
    """Weight, gradient and two states of the optimizer in fp32."""


def t5_graph(shape: Shape, *, blocks: bool = False) -> Graph:
    """The operators; `blocks`: one node a transformer block."""
    model = _Model(shape, blocks)
    source = model.stack("encoder", shape.source, None)
    target = model.stack("decoder", shape.target, source)
    model.linear("head", target, shape.target, shape.hidden, shape.vocab, shared=True)
    return Graph(
        nodes=[Node(**node) for node in model.nodes.values()], edges=[*model.edges.values()]
    )


@dataclass
class _Model:
    shape: Shape
    blocks: bool
    nodes: dict[str, dict] = field(default_factory=dict)
    edges: dict[tuple[str, str], Edge] = field(default_factory=dict)
    made: dict[str, float] = field(default_factory=dict)
    """Bytes of each operator's output."""

    def stack(self, name: str, tokens: int, memory: str | None) -> str:
        """The encoder or the decoder; returns its output."""
        shape = self.shape
        here = self.linear(f"{name}.embedding", "", tokens, 0, shape.hidden, shared=True)
        scores = shape.heads * tokens * tokens
        bias = self.operator(f"{name}.bias", [], scores * FP32, once=True)
        for layer in range(shape.layers):
            at = f"{name}.block{layer}"
            here = self.attention(f"{at}.self", here, here, tokens, tokens, bias)
            if memory is not None:
                here = self.attention(f"{at}.cross", here, memory, tokens, shape.source, None)
            normed = self.elementwise(f"{at}.feed.norm", [here], tokens * shape.hidden)
            wide = self.linear(f"{at}.feed.wi", normed, tokens, shape.hidden, shape.feed)
            wide = self.elementwise(f"{at}.feed.relu", [wide], tokens * shape.feed)
            out = self.linear(f"{at}.feed.wo", wide, tokens, shape.feed, shape.hidden)
            here = self.elementwise(f"{at}.feed.add", [here, out], tokens * shape.hidden)
        return self.elementwise(f"{name}.norm", [here], tokens * shape.hidden)

    def attention(
        self, at: str, here: str, memory: str, tokens: int, others: int, bias: str | None
    ) -> str:
        """Attention of `tokens` to `others`, with its norm and its residual; returns the output."""
        shape = self.shape
        normed = self.elementwise(f"{at}.norm", [here], tokens * shape.hidden)
        read = normed if memory == here else memory
        query = self.linear(f"{at}.q", normed, tokens, shape.hidden, shape.inner)
        key = self.linear(f"{at}.k", read, others, shape.hidden, shape.inner)
        value = self.linear(f"{at}.v", read, others, shape.hidden, shape.inner)
        count, flops = shape.heads * tokens * others, 2 * tokens * others * shape.inner
        scores = self.operator(f"{at}.scores", [query, key], count * FP32, flops=flops)
        if bias is not None:
            scores = self.elementwise(f"{at}.bias", [scores, bias], count)
        scores = self.elementwise(f"{at}.softmax", [scores], count)
        mixed_bytes = tokens * shape.inner * FP32
        mixed = self.operator(f"{at}.mix", [scores, value], mixed_bytes, flops=flops)
        out = self.linear(f"{at}.o", mixed, tokens, shape.inner, shape.hidden)
        return self.elementwise(f"{at}.add", [here, out], tokens * shape.hidden)

    def linear(
        self, name: str, read: str, tokens: int, wide: int, out: int, *, shared: bool = False
    ) -> str:
        """A matrix of `wide` x `out`; without `wide` an embedding that is looked up in."""
        parameters = (wide or self.shape.vocab) * out
        return self.operator(
            name, [read] if read else [], tokens * out * FP32,
            flops=2 * tokens * wide * out, parameters=parameters, shared=shared,
        )  # fmt: skip

    def elementwise(self, name: str, read: list[str], count: int) -> str:
        """An operator that reads and writes `count` numbers of each sample."""
        moved = 2 * count * FP32 * FLOPS_PER_MS / BYTES_PER_MS
        return self.operator(name, read, count * FP32, flops=moved)

    def operator(
        self, name: str, read: list[str], made: float, *,
        flops: float = 0.0, parameters: int = 0, shared: bool = False, once: bool = False,
    ) -> str:  # fmt: skip
        """Add an operator; `flops` and bytes `made` are of one sample, or of all with `once`."""
        shape = self.shape
        made *= 1 if once else shape.batch
        self.made[name] = made
        node = self._node(name)
        own = self.nodes.setdefault(
            node,
            {"id": node, "forward_ms": 0.0, "backward_ms": 0.0, "backward_kept_ms": 0.0, "bytes": 0.0,
             "shared": ["embedding"] if shared else [], "scope": self._scope(name)},
        )  # fmt: skip
        forward = flops * shape.batch / FLOPS_PER_MS
        own["forward_ms"] += forward
        own["backward_ms"] += 3 * forward
        own["backward_kept_ms"] += 2 * forward
        own["bytes"] += parameters * shape.bytes_per_parameter
        for source in read:
            ends = self._node(source), node
            if ends[0] != node and self.made[source] > getattr(self.edges.get(ends), "bytes", 0):
                self.edges[ends] = Edge(source=ends[0], target=node, bytes=self.made[source])
        return name

    def _node(self, name: str) -> str:
        return ".".join(name.split(".")[:2]) if self.blocks and ".block" in name else name

    def _scope(self, name: str) -> str:
        stack, _, rest = name.partition(".")
        block, _, inner = rest.partition(".")
        if not block.startswith("block"):
            return f"T5[t5]/{name}"
        return f"T5[t5]/Stack[{stack}]/T5Block[{block}]/{inner}"
