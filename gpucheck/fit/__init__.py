"""A server, cards and parts to advice: slots, power, cooling, firmware, and the search."""
