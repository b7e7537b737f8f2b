"""Inside one replica: continuous batching, paged KV, same-bits execution."""
