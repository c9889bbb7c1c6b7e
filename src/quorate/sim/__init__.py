"""A world in one process: virtual time, links, disks, faults and twins, all from one seed."""
