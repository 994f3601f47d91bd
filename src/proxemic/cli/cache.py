"""The command that shows and empties the cache of embeddings and converted networks."""


def cache(*, clear: bool = False) -> None:
    """Show the embeddings and converted networks that are kept in the user's cache, or remove them.

    Every command keeps the embeddings that it computes, so that no command embeds the same images with the same model
    again. Above 10 GB, the least recently used ones are removed (PROXEMIC_CACHE_GB sets another limit; 0 keeps none).
    The variable PROXEMIC_CACHE moves the cache. Networks are converted for ONNX Runtime, which is faster on most CPUs.

    Args:
        clear: Remove all kept embeddings and converted networks; pretrained networks and decoded images stay.
    """
    from proxemic.runs.kept import (
        clear_kept,
        converted_networks,
        kept_embeddings,
        networks_folder,
        vectors_folder,
    )
    from proxemic.tables import size_text

    if clear:
        print(f"{size_text(clear_kept())} removed from {vectors_folder()}")
        return
    kept = kept_embeddings()
    for name, (rows, size) in kept.items():
        print(f"{name}  {rows:,} embeddings, {size_text(size)}")
    rows, size = (sum(column) for column in zip(*kept.values(), strict=True)) if kept else (0, 0)
    models = f"{len(kept)} model{'s' * (len(kept) != 1)}"
    print(f"{rows:,} embeddings by {models}, {size_text(size)} in {vectors_folder()}")
    networks, size = converted_networks()
    print(f"{networks} network{'s' * (networks != 1)} for ONNX Runtime, {size_text(size)} in {networks_folder()}")
