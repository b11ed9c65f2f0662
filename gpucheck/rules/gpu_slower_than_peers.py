"""One card is slower than the others and sets the pace of all.

What it means
Among cards of the same name one reaches less than 85 % of the usual speed by itself.

How we know
Each card does the same updates alone, for two seconds, and its samples per second are counted. Only
cards that TensorFlow gives the same name are compared.

Why it matters
In every step all replicas wait for the slowest one: one card at half speed halves them all.

What to do
Under load, look at temperature, power limit, clocks and link width of this card (gpucheck probe;
nvidia-smi -q -d PERFORMANCE names what slows it). A power brake comes from the server, not the card.

When it is wrong
A card that drives a display, or makers' versions with different power limits, may differ a little.

Sources
https://github.com/tensorflow/tensorflow/issues/46831 (two fast cards, no faster than two slow ones)
"""
