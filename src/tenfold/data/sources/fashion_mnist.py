"""Fashion-MNIST: 70,000 pictures of clothes, a harder stand-in for MNIST (Xiao, Rasul & Vollgraf 2017)."""

from functools import partial

from tenfold.data.sources.mnist import scaled_images
from tenfold.data.sources.source import Source

FASHION_MNIST = Source(
    name="fashion-mnist",
    description="pictures of clothes: 60,000 + 10,000 grey images of 28x28, 10 classes",
    load=partial(scaled_images, mean=0.2860, std=0.3530),
    files={
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    mirrors=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
)
