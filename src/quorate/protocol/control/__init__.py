"""The control plane: what replicas agree on about the cluster itself.

`machine` carries out the commands of the control log on a `state`; `topology` knows the rules for
topics and replicas, `groups` those for consumer groups, and `balance` shares partitions out.
"""
