"""Names of metrics and choices among their series that stand in several panels."""

from __future__ import annotations

FIRST = "gen_ai_server_time_to_first_token_seconds"
ANSWER = "gen_ai_server_request_duration_seconds"
PER_TOKEN = "gen_ai_server_time_per_output_token_seconds"
BETWEEN = "soloist_inter_token_seconds"
QUEUE = "soloist_queue_seconds"

WANTED_ROOM = 'reason=~"queue_full|deadline_unmeetable|not_ready"'
OWN_FAULTS = 'reason=~"failed|engine_lost"'
