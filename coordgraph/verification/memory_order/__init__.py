"""The check `memory order` of lowered graphs: no data race and no deadlock in any interleaving."""
