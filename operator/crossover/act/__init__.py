"""From a decision to the smallest patches, pure, and one thin executor.

``template`` plans the apply of a pod template (and its undo and cleanup), ``strategy`` how its pods may be replaced,
``ownership`` what the apply must carry, ``mark`` what is remembered in annotations, ``config_map`` files for the engine;
``scale`` plans replicas; ``rollout`` judges what is under way; ``execute`` writes through a `Writer`.
"""
