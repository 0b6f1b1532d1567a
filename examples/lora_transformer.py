"""A Hugging Face transformer, fine-tuned with LoRA adapters over 20 clients of very different size.

The model is built from a configuration, so nothing is downloaded; with a model of your own, replace
``pretrained()`` by ``AutoModelForSequenceClassification.from_pretrained(…)``. Only adapters and the new head
are trained and sent: everything else is frozen, and is no part of the model's vector.

    pip install 'asyncmanifold[huggingface]'
    python examples/lora_transformer.py
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

from asyncmanifold import LocalTraining, Run, Schedule, Score, Task, simulate

TOPICS, WORDS, LENGTH, CLIENTS = 4, 48, 12, 20


def texts(count: int, seed: int, topics: list[float] | None = None) -> dict[str, Tensor]:
    """Return sentences of random length, half of whose words belong to their topic, as a tokenizer would."""
    random = torch.Generator().manual_seed(seed)
    topic = torch.multinomial(torch.tensor(topics or [1.0] * TOPICS), count, True, generator=random)
    own = 4 + topic[:, None] * 8 + torch.randint(8, (count, LENGTH), generator=random)
    other = torch.randint(4, WORDS, (count, LENGTH), generator=random)
    words = torch.where(torch.rand(count, LENGTH, generator=random) < 0.5, own, other)
    present = torch.arange(LENGTH) < torch.randint(LENGTH // 2, LENGTH + 1, (count, 1), generator=random)
    return {"input_ids": words * present, "attention_mask": present.long(), "labels": topic}


def build_transformer(labels: int) -> nn.Module:
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        num_labels=labels,
    )
    return BertForSequenceClassification(config)


@cache
def pretrained() -> nn.Module:
    """Return a transformer that knows the topics under other names, learned from public sentences."""
    torch.manual_seed(0)
    model = build_transformer(labels=TOPICS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(120):
        batch = texts(64, seed=1000 + step)
        labels = (batch.pop("labels") + 1) % TOPICS
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(**batch).logits, labels).backward()
        optimizer.step()
    return model


def build_model() -> nn.Module:
    """Return the frozen transformer with trainable adapters and a new head."""
    model = copy.deepcopy(pretrained())
    model.classifier = nn.Linear(model.config.hidden_size, TOPICS)
    adapters = LoraConfig(
        r=4, lora_alpha=16, target_modules=["query", "value"], modules_to_save=["classifier"]
    )
    return get_peft_model(model, adapters)


def loss(outputs: Any, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs.logits, labels)


def accuracy(outputs: Any, labels: Tensor) -> float:
    return (outputs.logits.argmax(dim=-1) == labels).float().mean().item()


def main() -> None:
    clients = []
    for client in range(CLIENTS):
        favourite = [6.0 if topic == client % TOPICS else 1.0 for topic in range(TOPICS)]
        clients.append(texts(8 + 3 * client, seed=client, topics=favourite))  # 8 to 65 sentences
    task = Task(
        build_model,
        loss,
        clients,
        test=texts(200, seed=99),
        metrics={"accuracy": Score(accuracy, higher_is_better=True)},
    )
    result = simulate(
        task,
        "fedasync",
        training=LocalTraining(
            point_epochs=2,
            batch_size=16,
            optimizer={"name": "AdamW", "weight_decay": 0.01},
            local_lr=5e-3,
            gradient_clip=1.0,
            local_schedule="linear",
            warm_up=0.1,
        ),
        schedule=Schedule(concurrency=8),
        run=Run(updates=60, evaluate_every=20),
    )
    frozen = sum(p.numel() for p in result.model.parameters() if not p.requires_grad)
    scores = [record["accuracy"] for record in result.trace if record["kind"] == "evaluation"]
    trained = result.summary["parameters"]
    print(f"{trained:,} of {trained + frozen:,} parameters are trained")
    print(f"accuracy {scores[0]:.2f} before, {scores[-1]:.2f} after {result.summary['updates']} updates")


if __name__ == "__main__":
    main()
