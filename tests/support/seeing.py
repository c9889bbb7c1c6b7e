"""A query that publishes what it reads, with "seen" in front; as a program, a driver to be killed.

python seeing.py CLUSTER CHECKPOINT TOPIC
"""

import sys
from typing import TYPE_CHECKING

from quorate.pipeline.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IN = "in"
ROWS_AT_ONCE = 500


def see(spark: "SparkSession", cluster: str, checkpoint: str, topic: str) -> None:
    """Until what is there has been read."""
    given = {"cluster": cluster, "identity": "bob"}
    reader = spark.readStream.format("quorate").options(topics=IN, **given)
    rows = reader.option("max_rows", str(ROWS_AT_ONCE)).load()
    seen = rows.selectExpr("key", "concat('seen ', cast(value as string)) as value").writeStream
    seen = seen.format("quorate").options(topic=topic, checkpointLocation=checkpoint, **given)
    seen.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    see(session("local[2]", settings={"spark.driver.memory": "1g"}), *sys.argv[1:])
