"""What a coordinator says at /metrics, read as Prometheus reads it."""

from prometheus_client.parser import text_string_to_metric_families


def figures(text: str, name: str, **labels: str) -> list[float]:
    """Of every sample of that whole name and, whatever its others, those labels."""
    return [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
