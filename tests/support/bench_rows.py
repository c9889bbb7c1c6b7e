"""The keys with which every row of every benchmark begins."""

KEYS = [
    "experiment", "protocol", "replicas", "topics", "events_per_batch", "event_bytes", "fault",
    "events_per_s", "mb_per_s", "pipe_frames_per_s", "pipe_mb_per_s", "ratio_to_pipe",
    "p50_ms", "p99_ms", "thesis",
]  # fmt: skip
