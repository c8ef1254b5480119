"""Fashion-MNIST: 70,000 pictures of clothes, a harder stand-in for MNIST (Xiao, Rasul & Vollgraf 2017)."""

from functools import partial

from tenfold.data.sources.mnist import scaled_images, scaled_pixels
from tenfold.data.sources.source import Source, SourceFile

FASHION_MNIST = Source(
    name="fashion-mnist",
    description="pictures of clothes: 60,000 + 10,000 grey images of 28x28, 10 classes",
    load=partial(scaled_images, mean=0.2860, std=0.3530),
    scale=partial(scaled_pixels, mean=0.2860, std=0.3530),
    files={
        "train-images-idx3-ubyte": SourceFile(
            size=47_040_016,
            sha256="c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            download_size=26_421_880,
            download_sha256="3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        ),
        "train-labels-idx1-ubyte": SourceFile(
            size=60_008,
            sha256="bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            download_size=29_515,
            download_sha256="a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        ),
        "t10k-images-idx3-ubyte": SourceFile(
            size=7_840_016,
            sha256="5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            download_size=4_422_102,
            download_sha256="346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        ),
        "t10k-labels-idx1-ubyte": SourceFile(
            size=10_008,
            sha256="0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            download_size=5_148,
            download_sha256="67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    },
    mirrors=(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",  # no https there; the hash is verified
    ),
    package="dataset-fashion-mnist",
)
