# A process for the fingerprints of each demo model, and one for everything else.
set(shards dense=*FingerprintTest.*/dense moe=*FingerprintTest.*/moe)
