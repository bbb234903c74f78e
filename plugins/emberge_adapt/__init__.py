"""A model adapted to a team's own data: one command writes a recipe, runs it, and shows what was gained.

No step is here: `adapt_data` recognises data, `data_facts` measures it, `adapt_plan` chooses settings,
`recipe_text` writes the recipe, `adapt_outcome` reads the scores.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
