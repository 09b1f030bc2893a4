"""What cameras, copies and conversions make of images, masks, arrays and saved sets."""

from __future__ import annotations

import io
import shutil

import numpy as np
import pytest
from PIL import Image

from datamodules import (
    ByDomain,
    DomainFolder,
)
from tests.datamodules.corpus.kinds import collectors
from tests.datamodules.corpus.made import (
    arrays,
    flb,
    folder,
    hfcols,
    images,
    npz,
    pairfolder,
    pairs,
    pfl,
    pfllib,
    pic,
    rows,
    saved,
    tab,
    ten,
    text,
)

DAMAGED, SOUND, damaged, sound = collectors()


@damaged(
    "folder", "a JPEG beside the PNG of the same name", r"same name|beside|two files|stem|formats"
)
def folders_a_jpeg_beside_the_png_of_the_same_name(home, rng):
    root = folder(rng, home)
    for p in [*root.rglob("*.png")]:
        Image.open(p).convert("RGB").save(p.with_suffix(".jpg"), quality=60)
    return images(root)


@damaged("folder", "copies as explorers name them, saved again", r"cop(y|ies)")
def folders_copies_as_explorers_name_them_saved_again(home, rng):
    root = folder(rng, home, suffix=".jpg")
    for p in [*root.rglob("*0.jpg")]:
        Image.open(p).save(p.with_name(p.stem + " (1).jpg"), quality=50)
        Image.open(p).save(p.with_name(p.stem + " - Copy.jpg"), quality=40)
    return images(root)


@damaged("folder", "a folder called New folder", r"New folder")
def folders_a_folder_called_new_folder(home, rng):
    return images(folder(rng, home, ("cat", "dog", "New folder")))


@damaged("folder", "a folder of rejects", r"backup|old|tmp")
def folders_a_folder_of_rejects(home, rng):
    return images(folder(rng, home, ("cat", "dog", "_backup")))


@damaged("folder", "singular and plural", r"cats")
def folders_singular_and_plural(home, rng):
    return images(folder(rng, home, ("cat", "cats", "dog")))


@damaged("folder", "grey bottom of cut JPEGs with an end mark", r"grey|cut|bottom")
def folders_grey_bottom_of_cut_jpegs_with_an_end_mark(home, rng):
    root = folder(rng, home, suffix=".jpg", size=(64, 64))
    for p in [*root.rglob("*03.jpg")]:
        b = p.read_bytes()
        p.write_bytes(b[: len(b) // 2] + b"\xff\xd9")
    return images(root)


@damaged("folder", "sixteen bits", r"8|rescale|bits")
def folders_sixteen_bits(home, rng):
    root = folder(rng, home)
    p = next(root.rglob("*.png"))
    Image.fromarray(rng.integers(0, 65535, (16, 16)).astype(np.uint16)).save(p)
    return images(root)


@damaged("folder", "float tiff", r"8|rescale|bits|bytes")
def folders_float_tiff(home, rng):
    root = folder(rng, home)
    p = next(root.rglob("*.png"))
    Image.fromarray(rng.normal(0, 1, (16, 16)).astype(np.float32)).save(p.with_suffix(".tif"))
    p.unlink()
    return images(root)


@damaged("folder", "train and test differ in case of a class", r"Cat")
def folders_train_and_test_differ_in_case_of_a_class(home, rng):
    for s, cs in (("train", ("cat", "dog")), ("test", ("Cat", "dog"))):
        for c in cs:
            (home / "g" / s / c).mkdir(parents=True)
            for i in range(8):
                pic(rng).save(home / "g" / s / c / f"{i}.png")
    return images(home / "g")


@damaged("folder", "animated gif as png", r"frames|GIF")
def folders_animated_gif_as_png(home, rng):
    root = folder(rng, home)
    fs = [pic(rng) for _ in range(3)]
    p = root / "cat" / "c00.png"
    fs[0].save(p, save_all=True, append_images=fs[1:])
    return images(root)


@damaged("folder", "thumbs, hidden and empty class", r"no sample|no image")
def folders_thumbs_hidden_and_empty_class(home, rng):
    root = folder(rng, home)
    (root / "cat" / "Thumbs.db").write_bytes(b"x")
    (root / "cat" / "._c00.png").write_bytes(b"x")
    (root / "emu").mkdir()
    return images(root)


@damaged("folder", "images of no pixels worth", r"small|pixels|single colour")
def folders_images_of_no_pixels_worth(home, rng):
    root = folder(rng, home, size=(64, 64))
    pic(rng, (1, 1)).save(root / "cat" / "c00.png")
    return images(root, image_size=16)


@damaged("folder", "a placeholder many times", r"content of another")
def folders_a_placeholder_many_times(home, rng):
    root = folder(rng, home)
    im = pic(rng)
    for c in ("cat", "dog"):
        for i in range(4):
            im.save(root / c / f"x{i}.png")
    return images(root)


@damaged("folder", "mixed sizes without image_size", r"image_size")
def folders_mixed_sizes_without_image_size(home, rng):
    root = folder(rng, home)
    pic(rng, (20, 12)).save(root / "cat" / "c00.png")
    return images(root)


@damaged("folder", "fully transparent", r"single colour|transpar")
def folders_fully_transparent(home, rng):
    root = folder(rng, home)
    for i in range(3):
        a = np.asarray(pic(rng, (16, 16), "RGBA")).copy()
        a[..., 3] = 0
        Image.fromarray(a).save(root / "cat" / f"c0{i}.png")
    return images(root)


@damaged("folder", "nested classes", r"several folders")
def folders_nested_classes(home, rng):
    root = folder(rng, home, ("a", "b"))
    for k in ("siam", "manx"):
        (root / "a" / k).mkdir()
        for i in range(4):
            pic(rng).save(root / "a" / k / f"{i}.png")
    return images(root)


@damaged("folder", "pictures of a screen: html saved as jpg", r"HTML")
def folders_pictures_of_a_screen_html_saved_as_jpg(home, rng):
    root = folder(rng, home)
    (root / "cat" / "c00.jpg").write_text("<!DOCTYPE html><html>403</html>")
    return images(root)


@damaged("folder", "uppercase and trailing blank of a class", r"alike|same")
def folders_uppercase_and_trailing_blank_of_a_class(home, rng):
    return images(folder(rng, home, ("cat", "Cat", "dog")))


@damaged("folder", "domains: the same domain under two spellings", r"alike|same")
def folders_domains_the_same_domain_under_two_spellings(home, rng):
    for d in ("Photo", "photo", "sketch"):
        for c in ("a", "b"):
            (home / "d" / d / c).mkdir(parents=True)
            for i in range(6):
                pic(rng).save(home / "d" / d / c / f"{i}.png")
    return DomainFolder(str(home / "d"), num_clients=None, partition=ByDomain())


@damaged("folder", "classes are numbers with a gap of leading zeros", r"alike|same")
def folders_classes_are_numbers_with_a_gap_of_leading_zeros(home, rng):
    return images(folder(rng, home, ("1", "01", "2")))


@damaged("folder", "superclasses in cp1252", r"UTF-8.*(iconv|convert)|iconv")
def folders_superclasses_in_cp1252(home, rng):
    root = folder(rng, home)
    (home / "s.csv").write_bytes(
        "class,superclass\ncat,Säugetier\ndog,Säugetier\nowl,Vogel\n".encode("cp1252")
    )
    return images(root, superclasses=str(home / "s.csv"))


@damaged("folder", "superclasses with semicolons", r"separat")
def folders_superclasses_with_semicolons(home, rng):
    root = folder(rng, home)
    (home / "s.csv").write_text("class;superclass\ncat;mammal\ndog;mammal\nowl;bird\n")
    return images(root, superclasses=str(home / "s.csv"))


@damaged("folder", "superclasses twice in case", r"alike|same")
def folders_superclasses_twice_in_case(home, rng):
    root = folder(rng, home)
    (home / "s.csv").write_text("class,superclass\ncat,mammal\ndog,Mammal\nowl,bird\n")
    return images(root, superclasses=str(home / "s.csv"))


@damaged("folder", "frames of the same videos", r"video")
def folders_frames_of_the_same_videos(home, rng):
    root = home / "f"
    for c in ("run", "walk"):
        (root / c).mkdir(parents=True)
        for v in range(6):
            for i in range(6):
                pic(rng).save(root / c / f"video{v + 6 * (c == 'run')}_frame{i}.png")
    return images(root)


@sound("folder")
def sound_folder_more_samples_asked_than_there_are(home, rng):
    return images(folder(rng, home), max_samples=10**6)


@sound("folder")
def sound_folder_usual(home, rng):
    return images(folder(rng, home))


@sound("folder")
def sound_folder_mpo_of_a_phone(home, rng):
    root = folder(rng, home, suffix=".jpg")
    for p in [*root.rglob("*.jpg")]:
        im = Image.open(p).convert("RGB")
        im.load()
        im.save(p, format="MPO", save_all=True, append_images=[im.resize((4, 4))])
    return images(root)


@sound("folder")
def sound_folder_jpeg_called_png_capitals_mac_files(home, rng):
    root = folder(rng, home)
    for p in [*root.rglob("*1.png")]:
        Image.open(p).convert("RGB").save(p, format="JPEG")
    for p in [*root.rglob("*2.png")]:
        p.rename(p.with_suffix(".PNG"))
    (root / ".DS_Store").write_bytes(b"x")
    (root / "cat" / "._c01.png").write_bytes(b"x")
    return images(root)


@sound("folder")
def sound_folder_grey_images_all(home, rng):
    root = folder(rng, home)
    for p in [*root.rglob("*.png")]:
        Image.open(p).convert("L").save(p)
    return images(root, grayscale=True)


@sound("folder")
def sound_folder_letterboxed(home, rng):
    root = folder(rng, home, size=(32, 32))
    for p in [*root.rglob("*5.png")]:
        a = np.asarray(Image.open(p)).copy()
        a[:4] = a[-4:] = 0
        Image.fromarray(a).save(p)
    return images(root)


@sound("folder")
def sound_folder_glass_and_grass(home, rng):
    return images(folder(rng, home, ("glass", "grass", "bus"), n=15))


@sound("folder")
def sound_folder_images_with_numbers_in_brackets(home, rng):
    root = home / "f"
    for c in ("cat", "dog"):
        (root / c).mkdir(parents=True)
        for i in range(12):
            pic(rng).save(root / c / f"{c} ({i}).png")
    return images(root)


@damaged("pairs", "palettes differ between masks", r"palette")
def masks_palettes_differ_between_masks(home, rng):
    im, ma = pairs(rng, home)
    for i, p in enumerate(sorted(ma.rglob("*.png"))):
        m = Image.open(p)
        q = Image.fromarray(np.asarray(m), "P")
        q.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0] if i % 2 else [0, 0, 0, 0, 255, 0, 255, 0, 0])
        q.save(p)
    return pairfolder(im, ma)


@damaged("pairs", "one client has 255 for 1", r"255")
def masks_one_client_has_255_for_1(home, rng):
    im, ma = pairs(rng, home, values=(0, 1))
    for p in (ma / "b").glob("*.png"):
        Image.fromarray(np.asarray(Image.open(p)) * 255).save(p)
    return pairfolder(im, ma)


@damaged("pairs", "masks swapped with images", r"mask|colours")
def masks_masks_swapped_with_images(home, rng):
    im, ma = pairs(rng, home)
    return pairfolder(ma, im)


@damaged("pairs", "all masks of one client empty", r"client|class|masks")
def masks_all_masks_of_one_client_empty(home, rng):
    im, ma = pairs(rng, home)
    for p in (ma / "b").glob("*.png"):
        Image.fromarray(np.zeros((16, 16), np.uint8)).save(p)
    return pairfolder(im, ma)


@damaged("pairs", "the mask of another image, copied", r"mask|content")
def masks_the_mask_of_another_image_copied(home, rng):
    im, ma = pairs(rng, home, n=10)
    for i in range(1, 7):
        shutil.copy(ma / "a" / "0.png", ma / "a" / f"{i}.png")
    return pairfolder(im, ma)


@damaged("pairs", "grey image with alpha as mask", r"LA|colours|grey")
def masks_grey_image_with_alpha_as_mask(home, rng):
    im, ma = pairs(rng, home)
    p = ma / "a" / "0.png"
    Image.open(p).convert("LA").save(p)
    return pairfolder(im, ma)


@damaged("pairs", "masks resized with smoothing", r"numbers|resized")
def masks_masks_resized_with_smoothing(home, rng):
    im, ma = pairs(rng, home, values=(0, 255))
    for p in ma.rglob("*.png"):
        Image.open(p).resize((8, 8), Image.BILINEAR).resize((16, 16), Image.BILINEAR).save(p)
    return pairfolder(im, ma)


@damaged("pairs", "a mask rotated against its image", r"pixels|size")
def masks_a_mask_rotated_against_its_image(home, rng):
    im, ma = pairs(rng, home)
    p = im / "a" / "0.png"
    pic(rng, (16, 20)).save(p)
    Image.fromarray(np.zeros((16, 20), np.uint8)).save(ma / "a" / "0.png")
    return pairfolder(im, ma)


@sound("pairs")
def sound_pairs_usual(home, rng):
    return pairfolder(*pairs(rng, home))


@sound("pairs")
def sound_pairs_one_palette(home, rng):
    im, ma = pairs(rng, home)
    for p in ma.rglob("*.png"):
        q = Image.fromarray(np.asarray(Image.open(p)), "P")
        q.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
        q.save(p)
    return pairfolder(im, ma)


@sound("pairs")
def sound_pairs_some_masks_empty(home, rng):
    im, ma = pairs(rng, home)
    for p in (*ma.rglob("1.png"), *ma.rglob("2.png")):
        Image.fromarray(np.zeros((16, 16), np.uint8)).save(p)
    return pairfolder(im, ma)


@damaged("tensors", "flat images in bytes", r"bytes|scale|255")
def tensors_flat_images_in_bytes(home, rng):
    a = arrays(rng)
    a["x"] = rng.integers(0, 256, (120, 784)).astype(np.uint8)
    return npz(home, a)


@damaged("tensors", "column vector of labels", r"y\b.*(\[:, 0\]|squeeze|column|flatten)")
def tensors_column_vector_of_labels(home, rng):
    a = arrays(rng, c=2)
    a["y"] = a["y"][:, None]
    return npz(home, a)


@damaged("tensors", "column vector of three classes", r"y\b")
def tensors_column_vector_of_three_classes(home, rng):
    a = arrays(rng, c=3)
    a["y"] = a["y"][:, None]
    return npz(home, a)


@damaged("tensors", "labels as words", r"unique|number")
def tensors_labels_as_words(home, rng):
    a = arrays(rng)
    a["y"] = np.array(["cat", "dog", "owl"])[a["y"]]
    return npz(home, a)


@damaged("tensors", "object array of rows", r"object|pickle|plain|stack")
def tensors_object_array_of_rows(home, rng):
    a = arrays(rng)
    o = np.empty(120, object)
    o[:] = [*a["x"]]
    a["x"] = o
    return npz(home, a)


@damaged("tensors", "labels from 1", r"numbered from 0|smallest class")
def tensors_labels_from_1(home, rng):
    a = arrays(rng)
    a["y"] = a["y"] + 1
    return npz(home, a)


@damaged("tensors", "label out of the names' range", r"class")
def tensors_label_out_of_the_names_range(home, rng):
    a = arrays(rng)
    a["class_names"] = ["a", "b"]
    return npz(home, a)


@damaged("tensors", "nan", r"not finite")
def tensors_nan(home, rng):
    a = arrays(rng)
    a["x"][3, 2] = np.nan
    return npz(home, a)


@damaged("tensors", "one hot", r"argmax")
def tensors_one_hot(home, rng):
    a = arrays(rng)
    a["y"] = np.eye(3, dtype=int)[a["y"]]
    return npz(home, a)


@damaged("tensors", "probabilities as labels", r"argmax|sum|probabilit")
def tensors_probabilities_as_labels(home, rng):
    a = arrays(rng)
    p = rng.dirichlet([1, 1, 1], 120).astype(np.float32)
    a["y"] = p
    return npz(home, a)


@damaged("tensors", "float labels", r"long|classes")
def tensors_float_labels(home, rng):
    a = arrays(rng)
    a["y"] = a["y"].astype(np.float32)
    return npz(home, a)


@damaged("tensors", "channels last floats", r"permute|channels")
def tensors_channels_last_floats(home, rng):
    a = arrays(rng)
    a["x"] = rng.uniform(0, 1, (120, 12, 12, 3)).astype(np.float32)
    return npz(home, a)


@damaged("tensors", "float images up to 255", r"uint8|scaled")
def tensors_float_images_up_to_255(home, rng):
    a = arrays(rng)
    a["x"] = rng.integers(0, 256, (120, 3, 8, 8)).astype(np.float32)
    return npz(home, a)


@damaged("tensors", "test rows are training rows", r"both sides")
def tensors_test_rows_are_training_rows(home, rng):
    a = arrays(rng)
    a["x_test"], a["y_test"] = (a["x"][:20].copy(), a["y"][:20].copy())
    a["client"] = np.concatenate([a["client"], a["client"][:20]])
    return npz(home, a)


@damaged("tensors", "samples of zeros at the end", r"content of another|zero")
def tensors_samples_of_zeros_at_the_end(home, rng):
    a = arrays(rng)
    a["x"][100:] = 0
    return npz(home, a)


@damaged("tensors", "clients one hot", r"client")
def tensors_clients_one_hot(home, rng):
    a = arrays(rng)
    a["client"] = np.eye(4, dtype=int)[a["client"]]
    return npz(home, a)


@damaged("tensors", "labels wrapped around in bytes", r"255|stands apart")
def tensors_labels_wrapped_around_in_bytes(home, rng):
    a = arrays(rng)
    y = a["y"].copy()
    y[::9] = -1
    a["y"] = y.astype(np.uint8)
    return npz(home, a)


@damaged("tensors", "test set scaled by 255, bytes as floats in train", r"scale|spans")
def tensors_test_set_scaled_by_255_bytes_as_floats_in_train(home, rng):
    a = arrays(rng, d=30)
    a["x"] = rng.uniform(0, 255, (120, 30)).astype(np.float32)
    a["x_test"] = rng.uniform(0, 1, (40, 30)).astype(np.float32)
    a["y_test"] = rng.integers(0, 3, 40)
    a["client"] = rng.integers(0, 4, 160)
    return npz(home, a)


@damaged("tensors", "not a zip", r"npz|savez")
def tensors_not_a_zip(home, _):
    p = home / "a.npz"
    np.save(p.with_suffix(".npy"), np.zeros(3))
    p.with_suffix(".npy").rename(p)
    return ten(str(p))


@damaged("tensors", "time goes by row number", r"same|order")
def tensors_time_goes_by_row_number(home, rng):
    a = arrays(rng)
    a["column.time"] = np.zeros(120)
    return npz(home, a, test_protocol="future")


@damaged("tensors", "a feature is the label", r"tells|answer|label|target")
def tensors_a_feature_is_the_label(home, rng):
    a = arrays(rng)
    a["x"][:, 2] = a["y"]
    return npz(home, a)


@damaged("tensors", "complex", r"complex")
def tensors_complex(home, rng):
    a = arrays(rng)
    a["x"] = a["x"].astype(complex)
    return npz(home, a)


@sound("tensors")
def sound_tensors_usual(home, rng):
    return npz(home, arrays(rng))


@sound("tensors")
def sound_tensors_tokens(home, rng):
    a = arrays(rng)
    a["x"] = rng.integers(0, 900, (120, 20))
    return npz(home, a)


@sound("tensors")
def sound_tensors_multilabel(home, rng):
    a = arrays(rng)
    a["y"] = rng.integers(0, 2, (120, 5))
    return npz(home, a)


@sound("tensors")
def sound_tensors_images_bytes(home, rng):
    a = arrays(rng)
    a["x"] = rng.integers(0, 256, (120, 3, 8, 8)).astype(np.uint8)
    return npz(home, a)


@sound("tensors")
def sound_tensors_regression(home, rng):
    a = arrays(rng)
    a["y"] = rng.normal(0, 1, 120).astype(np.float32)
    return npz(home, a)


@sound("tensors")
def sound_tensors_shares_to_predict(home, rng):
    a = arrays(rng)
    a["y"] = rng.uniform(0, 1, (120, 3)).astype(np.float32)
    return npz(home, a)


@damaged("tensors", "client -1", r"client -1")
def tensors_client_1(home, rng):
    a = arrays(rng)
    a["client"][::7] = -1
    return npz(home, a)


@damaged("pfllib", "a client's file lost in the copy", r"client 1|1\.npz")
def pfllib_a_client_s_file_lost_in_the_copy(home, rng):
    r = pfllib(rng, home, 4)
    (r / "train" / "1.npz").unlink()
    (r / "test" / "1.npz").unlink()
    return pfl(r)


@damaged("pfllib", "a copy by a browser", r"\(1\)")
def pfllib_a_copy_by_a_browser(home, rng):
    r = pfllib(rng, home)
    shutil.copy(r / "train" / "0.npz", r / "train" / "0 (1).npz")
    return pfl(r)


@damaged("pfllib", "an empty file", r"0\.npz|1\.npz")
def pfllib_an_empty_file(home, rng):
    r = pfllib(rng, home)
    (r / "train" / "1.npz").write_bytes(b"")
    return pfl(r)


@damaged("pfllib", "one client of another shape", r"1\.npz.*shape|shape.*1\.npz|client 1")
def pfllib_one_client_of_another_shape(home, rng):
    return pfl(
        pfllib(rng, home, change=lambda p, c, d: {**d, "x": d["x"][:, :, :5]} if c == 1 else d)
    )


@damaged("pfllib", "one client in bytes", r"1\.npz|client 1|uint8")
def pfllib_one_client_in_bytes(home, rng):
    return pfl(
        pfllib(
            rng,
            home,
            change=lambda p, c, d: (
                {**d, "x": rng.integers(0, 256, d["x"].shape).astype(np.uint8)} if c == 1 else d
            ),
        )
    )


@damaged("pfllib", "fractional labels", r"whole|label")
def pfllib_fractional_labels(home, rng):
    return pfl(pfllib(rng, home, change=lambda p, c, d: {**d, "y": d["y"] + 0.5} if c == 1 else d))


@damaged("pfllib", "test is train", r"both sides|content")
def pfllib_test_is_train(home, rng):
    r = pfllib(rng, home)
    shutil.copy(r / "train" / "0.npz", r / "test" / "0.npz")
    return pfl(r)


@damaged("pfllib", "channels last", r"permute|channels")
def pfllib_channels_last(home, rng):
    return pfl(
        pfllib(
            rng,
            home,
            change=lambda p, c, d: {
                **d,
                "x": rng.normal(0, 1, (len(d["y"]), 12, 12, 3)).astype(np.float32),
            },
        )
    )


@damaged("pfllib", "two clients are the same file", r"content of another")
def pfllib_two_clients_are_the_same_file(home, rng):
    r = pfllib(rng, home)
    shutil.copy(r / "train" / "0.npz", r / "train" / "2.npz")
    return pfl(r)


@damaged("pfllib", "nan", r"not finite")
def pfllib_nan(home, rng):

    def f(p, c, d):
        d["x"][0, 0, 0, 0] = np.nan
        return d

    return pfl(pfllib(rng, home, change=f))


@damaged("pfllib", "a client without test samples", r"test|client")
def pfllib_a_client_without_test_samples(home, rng):
    return pfl(
        pfllib(
            rng,
            home,
            change=lambda p, c, d: (
                {"x": d["x"][:0], "y": d["y"][:0]} if (p, c) == ("test", 1) else d
            ),
        )
    )


@sound("pfllib")
def sound_pfllib_usual(home, rng):
    return pfl(pfllib(rng, home))


@sound("pfllib")
def sound_pfllib_config_json_beside(home, rng):
    r = pfllib(rng, home)
    (r / "config.json").write_text("{}")
    return pfl(r)


@damaged("flbench", "test ids among the training ids", r"tests on.*again")
def flbench_test_ids_among_the_training_ids(home, rng):
    return flb(
        rng, home, lambda d, p: p[0].update(test=np.concatenate([p[0]["test"], p[0]["train"][:5]]))
    )


@damaged("flbench", "test ids of another's training", r"tests on.*again")
def flbench_test_ids_of_another_s_training(home, rng):
    return flb(rng, home, lambda d, p: p[0].update(test=p[1]["train"][:8]))


@damaged("flbench", "ids beyond the data", r"outside")
def flbench_ids_beyond_the_data(home, rng):
    return flb(rng, home, lambda d, p: p[0].update(train=p[0]["train"] + 100))


@damaged("flbench", "negative ids", r"outside|negative")
def flbench_negative_ids(home, rng):
    return flb(rng, home, lambda d, p: p[0].update(train=np.concatenate([p[0]["train"], [-5]])))


@damaged("flbench", "half of the data unused", r"unused|not in use|used|60")
def flbench_half_of_the_data_unused(home, rng):
    return flb(rng, home, lambda d, p: [x.update(train=x["train"][:8]) for x in p] and None)


@damaged("flbench", "a sample twice in a client", r"two clients|twice")
def flbench_a_sample_twice_in_a_client(home, rng):
    return flb(
        rng,
        home,
        lambda d, p: p[0].update(train=np.concatenate([p[0]["train"], p[0]["train"][:4]])),
    )


@damaged("flbench", "an empty client", r"client|no .*sample")
def flbench_an_empty_client(home, rng):
    return flb(rng, home, lambda d, p: p[0].update(train=p[0]["train"][:0], test=p[0]["test"][:0]))


@sound("flbench")
def sound_flbench_usual(home, rng):
    return flb(rng, home, lambda d, p: None)


@damaged("saved", "unlabelled test split (-1)", r"-1|label")
def saved_unlabelled_test_split_1(home, rng):
    datasets = pytest.importorskip("datasets")
    f = datasets.Features(
        {
            "x": datasets.Sequence(datasets.Value("float32")),
            "y": datasets.ClassLabel(names=["a", "b", "c"]),
            "site": datasets.Value("string"),
        }
    )
    a, b = (hfcols(rng), hfcols(rng, 30))
    b["y"] = [-1] * 30
    return saved(home, None, f, {"train": a, "test": b})


@damaged("saved", "names with trailing blanks and case", r"alike|same")
def saved_names_with_trailing_blanks_and_case(home, rng):
    c = hfcols(rng)
    c["y"] = [["cat", "dog", "Dog"][v] for v in c["y"]]
    return saved(home, c)


@damaged("saved", "ragged vectors", r"row|shape|length")
def saved_ragged_vectors(home, rng):
    c = hfcols(rng)
    c["x"][7] = c["x"][7][:-1]
    return saved(home, c)


@damaged("saved", "nan in a vector", r"not finite")
def saved_nan_in_a_vector(home, rng):
    c = hfcols(rng)
    c["x"][7][1] = float("nan")
    return saved(home, c)


@damaged("saved", "none in a vector", r"row|None|number|sample 7")
def saved_none_in_a_vector(home, rng):
    c = hfcols(rng)
    c["x"][7][1] = None
    return saved(home, c)


@damaged("saved", "test rows among the train rows", r"both sides")
def saved_test_rows_among_the_train_rows(home, rng):
    a = hfcols(rng)
    b = {k: v[:20] for k, v in a.items()}
    return saved(home, None, None, {"train": a, "test": b})


@damaged("saved", "patients on both sides", r"patient")
def saved_patients_on_both_sides(home, rng):
    c = hfcols(rng)
    c["patient_id"] = [i // 3 for i in range(90)]
    return saved(home, c)


@damaged("saved", "pictures, one in sixteen bits", r"bits|8|rescale")
def saved_pictures_one_in_sixteen_bits(home, rng):
    datasets = pytest.importorskip("datasets")
    c = {"x": [], "y": []}
    for i in range(30):
        b = io.BytesIO()
        im = pic(rng)
        if i == 4:
            im = Image.fromarray(rng.integers(0, 65535, (16, 16)).astype(np.uint16))
        im.save(b, "PNG")
        c["x"].append({"bytes": b.getvalue(), "path": None})
        c["y"].append(i % 3)
    return saved(home, c, datasets.Features({"x": datasets.Image(), "y": datasets.Value("int64")}))


@damaged("saved", "a client under two spellings", r"alike|same")
def saved_a_client_under_two_spellings(home, rng):
    c = hfcols(rng)
    c["site"][5] = "aachen"
    return saved(home, c, client_column="site")


@damaged("saved", "pictures: fully white and copies", r"single colour|content")
def saved_pictures_fully_white_and_copies(home, rng):
    datasets = pytest.importorskip("datasets")
    c = {"x": [], "y": []}
    for i in range(30):
        b = io.BytesIO()
        im = pic(rng) if i % 9 else Image.new("RGB", (16, 16), "white")
        im.save(b, "PNG")
        c["x"].append({"bytes": b.getvalue(), "path": None})
        c["y"].append(i % 3)
    return saved(home, c, datasets.Features({"x": datasets.Image(), "y": datasets.Value("int64")}))


@sound("saved")
def sound_saved_labels_from_1(home, rng):
    c = hfcols(rng)
    c["x"] = [[float(v) for v in x] for x in c["x"]]
    c["y"] = [v + 1 for v in c["y"]]
    return saved(home, c)


@damaged("saved", "probabilities as words", r"number|class|own")
def saved_probabilities_as_words(home, rng):
    c = hfcols(rng)
    c["y"] = [f"{v + rng.uniform():.4f}" for v in c["y"]]
    return saved(home, c)


@damaged("saved", "spreadsheet dates as an input", r"serial|spreadsheet")
def saved_spreadsheet_dates_as_an_input(home, rng):
    c = hfcols(rng)
    c["admitted_date"] = [float(v) for v in rng.integers(44000, 45500, 90)]
    return saved(home, c, inputs=["x", "admitted_date"])


@damaged("saved", "splits called like a csv export", r"train")
def saved_splits_called_like_a_csv_export(home, rng):
    return saved(home, None, None, {"Train": hfcols(rng), "Test": hfcols(rng, 30)})


@damaged("saved", "an arrow file lost", r"no folder|damaged|exist|missing")
def saved_an_arrow_file_lost(home, rng):
    d = saved(home, hfcols(rng))
    next((home / "hf").glob("*.arrow")).unlink()
    return d


@damaged("saved", "metres among centimetres", r"unit|around")
def saved_metres_among_centimetres(home, rng):
    c = hfcols(rng)
    c["height"] = [
        float(v) if i % 3 else float(v) / 100 for i, v in enumerate(rng.normal(172, 9, 90))
    ]
    return saved(home, c, inputs=["x", "height"])


@sound("saved")
def sound_saved_usual(home, rng):
    return saved(home, hfcols(rng))


@sound("saved")
def sound_saved_words_of_classes(home, rng):
    c = hfcols(rng)
    c["y"] = [["cat", "dog", "owl"][v] for v in c["y"]]
    return saved(home, c)


@sound("saved")
def sound_saved_splits(home, rng):
    return saved(home, None, None, {"train": hfcols(rng), "test": hfcols(rng, 30)})


@sound("saved")
def sound_saved_pictures_of_mpo(home, rng):
    datasets = pytest.importorskip("datasets")
    c = {"x": [], "y": []}
    for i in range(30):
        b = io.BytesIO()
        im = pic(rng)
        im.save(b, "MPO", save_all=True, append_images=[im.resize((4, 4))])
        c["x"].append({"bytes": b.getvalue(), "path": None})
        c["y"].append(i % 3)
    return saved(home, c, datasets.Features({"x": datasets.Image(), "y": datasets.Value("int64")}))


@damaged("splits", "test_fraction beside official tests", r"test_fraction")
def splits_test_fraction_beside_official_tests(home, rng):
    for s in ("train", "test"):
        for c in ("a", "b"):
            (home / "g" / s / c).mkdir(parents=True)
            for i in range(8):
                pic(rng).save(home / "g" / s / c / f"{i}.png")
    return images(home / "g", test_fraction=0.4)


@damaged("splits", "val_fraction beside val", r"val_fraction")
def splits_val_fraction_beside_val(home, rng):
    for s in ("train", "val"):
        for c in ("a", "b"):
            (home / "g" / s / c).mkdir(parents=True)
            for i in range(8):
                pic(rng).save(home / "g" / s / c / f"{i}.png")
    return images(home / "g", val_fraction=0.2)


@damaged("splits", "future without times", r"time")
def splits_future_without_times(home, rng):
    return tab(home, text(rows(rng)), test_protocol="future")


@sound("splits")
def sound_splits_two_clients_of_each_site(home, rng):
    return tab(home, text(rows(rng)), num_clients=8)


@damaged("splits", "client column is the class", r"client|class|target")
def splits_client_column_is_the_class(home, rng):
    return tab(home, text(rows(rng)), client_column="outcome")
