"""The data pipeline: Spark reads topics, and publishes what it finds on topics.

    from quorate.pipeline.session import session

    spark = session("local[2]")
    given = {"cluster": "cluster", "identity": "bob"}
    events = spark.readStream.format("quorate").options(topics="ledger", **given).load()

Spark and its helpers are the extra `spark`; nothing here is imported without being asked for.
"""
