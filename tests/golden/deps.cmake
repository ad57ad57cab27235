# A process for each demo model, whose reference takes longest, and one for the small random models.
set(shards dense=*/dense moe=*/moe)
