from hypothesis import settings

# A busy machine makes single examples slow, which is no failure.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
