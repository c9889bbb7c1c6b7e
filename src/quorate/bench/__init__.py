"""Experiments with real processes, and the raw pipe of the same run beside every figure.

A figure alone says more about a machine than about a program. So each row also tells what one
plain sender and one plain receiver reach on the same machine, with frames of the same size and
moments before and after (`pipe`); the ratio of the two means something anywhere.
"""
