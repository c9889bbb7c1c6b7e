# profile the machine of a replica alone: feed appends to an Ordering with SimStore? skip
