"""Networks, acting and rollouts; reads and writes policy snapshots (`policy.json`, `policy.safetensors`)."""
