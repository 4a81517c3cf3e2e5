"""What attention does: how spread it is, and how large its logits grow."""

import torch

from retold.policy.inputs import pack_inputs
from retold.policy.network import Policy
from retold.policy.transformer import TransformerEncoder
from retold.train.batch import Batch

_MOST_ROWS = 512
"""Rows of a sequence that are looked at: all pairs of them are held at once."""


@torch.no_grad()
def attention_metrics(policy: Policy, batch: Batch) -> dict[str, float]:
    """Mean entropy (nats) and largest logit of each layer, over the batch's longest window.

    A policy without attention has none.
    """
    encoder = policy.trajectory_encoder
    if not isinstance(encoder, TransformerEncoder):
        return {}
    longest = max(range(len(batch.lengths)), key=batch.lengths.__getitem__)
    rows = [min(length + 1, _MOST_ROWS) for length in batch.lengths]
    packed = pack_inputs(batch.inputs, rows)
    mine = packed.sequence == longest
    features = policy.timestep_encoder(packed)[mine]
    facts = encoder.attention_facts(features, packed.step[mine])
    return {
        f"{name}_{layer}": value
        for layer, pair in enumerate(facts)
        for name, value in zip(("attention_entropy", "attention_logit"), pair, strict=True)
    }
