"""Seeded data with ground truth, so that what a job finds can be held against what is there."""
