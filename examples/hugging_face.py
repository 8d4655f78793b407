"""How deep, how many heads, how wide inside? Asked of a BERT of Hugging Face, whose code is not touched.

Needs `pip install transformers`. The BERT is small and has random weights; with `from_pretrained` the search begins
with its own. The task: for each letter of a sequence, how often does it occur in the whole sequence?
"""

import torch
from transformers import BertConfig, BertForTokenClassification
from transformers.models.bert.modeling_bert import BertLayer

from asng import ASNG, nas

LETTERS, HEAD_DIM = 5, 16


def replace(path, module):
    if isinstance(module, BertLayer):
        heads, hidden = nas.Width(f"{path}.heads", [1, 2, 4]), nas.Width(f"{path}.hidden", [16, 32, 64, 128])
        attention, linear = module.attention, nas.Linear.from_torch
        for role in ("query", "key", "value"):
            setattr(attention.self, role, linear(getattr(attention.self, role), out_features=heads * HEAD_DIM))
        attention.output.dense = linear(attention.output.dense, in_features=heads * HEAD_DIM)
        module.intermediate.dense = linear(module.intermediate.dense, out_features=hidden)
        module.output.dense = linear(module.output.dense, in_features=hidden)
    return nas.Repeat("depth", module) if path == "bert.encoder.layer" else None


def batch(n=64):
    ids = torch.randint(LETTERS, (n, 8))
    return {"input_ids": ids, "labels": (ids[:, :, None] == ids[:, None]).sum(2).clamp(max=4) - 1}


def right(network):
    return (network(input_ids=test["input_ids"]).logits.argmax(2) == test["labels"]).float().mean().item()


torch.manual_seed(0)
sizes = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 128}
config = BertConfig(
    vocab_size=LETTERS, num_labels=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **sizes
)
model = nas.convert(BertForTokenClassification(config), replace)
weight_optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
largest = {name: variable.values()[-1] for name, variable in nas.space_of(model).items()}  # type: ignore[index]
flops = nas.Flops(kwargs=batch(1))
limit = nas.Limit(flops, flops(model, largest) // 2)

arch_optimizer = ASNG(nas.space_of(model), seed=0)
oneshot = nas.OneShot(model, arch_optimizer, weight_optimizer, lambda m, b: m(**b).loss, limits=[limit])
for _ in range(800):
    oneshot.step(batch(), batch())
result, test = nas.result(oneshot), batch(2000)
print(f"found: {result.values}, feasible: {result.feasible}")
print(f"{flops(model, result.values)} FLOPs, of {flops(model, largest)} of the largest")
others = [nas.extract(model, candidate.values) for candidate in ASNG(nas.space_of(model), seed=1).ask(10)]
print(f"accuracy: found {right(result.model):.3f}, mean of 10 random architectures {sum(map(right, others)) / 10:.3f}")
