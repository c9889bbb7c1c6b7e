"""How far a job takes another's word on the time.

The watermark of a stream is the latest time that anybody claimed, less a delay. Whoever claims a
time to come would move it beyond the events of all others, which are then too late. So nobody moves
the time of a job beyond now (`moves_time`).

What a job compares is another time (`happened_us`). The clock of an honest site may be ahead by as
much as the delay allows for, and two events of that site have to keep their order and distance
whichever batches bring them. To cut their times off at now, which is another moment in each batch,
would change both: an ACK that comes before the late SYN-ACK it answers would seem to be from before
it. So times are left as they are up to the delay from now. Cut off there, what somebody claims of
next year is not remembered until then.
"""

from pyspark.sql import Column
from pyspark.sql import functions as F


def now_us() -> Column:
    """When the batch began: the same in all its rows, and when it is done again."""
    return F.unix_micros(F.current_timestamp())


def moves_time(claimed: Column) -> Column:
    """The time to which an event moves the watermark."""
    return F.least(claimed, F.current_timestamp())


def happened_us(claimed_us: Column, delay_us: int) -> Column:
    """When an event was, to compare it with others."""
    return F.least(claimed_us, now_us() + F.lit(delay_us))
