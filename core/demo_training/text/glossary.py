"""What the demo model says about running language models: each term long, short and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Term:
    """`asked` are patterns of its name in questions; `name` is its name in answers."""

    name: str
    asked: str
    long: str
    short: str
    why: str


TERMS = (
    Term("device mapping", "[device mapping|device maps|a device map|the device map]",
         "**Device mapping** spreads the layers of a model over the devices that you have. Each "
         "layer runs where its weights are, and only the activations hop between devices.",
         "each device holds some of the layers.",
         "It lets a model run that is too big for one GPU."),
    Term("the KV cache", "[the KV cache|a KV cache|KV cache|KV caching|the key value cache]",
         "The **KV cache** keeps the keys and values of all tokens so far. Each new token then "
         "needs only its own work, not the whole text again.",
         "it remembers the keys and values of earlier tokens.",
         "Without it every new token would need the whole text again."),
    Term("quantization", "[quantization|quantisation|quantizing|model quantization]",
         "**Quantization** stores the weights with fewer bits, for example 4 instead of 16. The "
         "model becomes smaller and often faster, and loses a little accuracy.",
         "it stores the weights with fewer bits.",
         "A smaller model fits on smaller devices and is read faster."),
    Term("ISQ", "[ISQ|in-situ quantization|in situ quantization]",
         "**ISQ** means in-situ quantization: the weights are quantized while the model loads. "
         "You ask for it with `--isq`, for example `--isq q4k`.",
         "it quantizes the weights while the model loads.",
         "You need no quantized file, any model can be made smaller on the way in."),
    Term("prefill", "[prefill|prefilling|the prefill phase|prompt processing]",
         "**Prefill** is the first phase of a reply: the model reads the whole prompt at once and "
         "fills the KV cache. Its speed sets the time to the first token.",
         "the model reads the prompt.",
         "Reading many tokens at once is much faster than one by one."),
    Term("decode", "[decode|decoding|the decode phase|token generation]",
         "**Decode** is the second phase of a reply: the model writes one token after another. "
         "It is mostly limited by memory bandwidth.",
         "the model writes the reply token by token.",
         "Each token depends on the one before, so they come one at a time."),
    Term("tokens", "[a token|tokens|token]",
         "A **token** is a piece of text, often a word or a part of one. Models read and write "
         "tokens, not letters.",
         "a token is a small piece of text.",
         "A fixed list of pieces lets a model read any text."),
    Term("the tokenizer", "[a tokenizer|the tokenizer|tokenizers|tokenization]",
         "A **tokenizer** cuts text into tokens and gives each one a number. It also turns the "
         "numbers back into text.",
         "it turns text into tokens and back.",
         "A model can only work with numbers."),
    Term("GGUF", "[GGUF|a GGUF file|GGUF files|the GGUF format|.gguf]",
         "**GGUF** is a file format for models from the llama.cpp project. One file holds the "
         "weights, often quantized, the tokenizer and the chat template.",
         "one file with the weights and the tokenizer of a model.",
         "One file is easy to share, and all is in it."),
    Term("safetensors", "[safetensors|safetensors files|a safetensors file|the safetensors format]",
         "**safetensors** is a safe file format for weights. It has a small header and raw "
         "numbers, so no code can hide in it.",
         "a safe file format for weights.",
         "Pickle files can run code when they are loaded, safetensors files cannot."),
    Term("layers", "[a layer|layers|layer|a model layer]",
         "A **layer** is one block of a model, with attention and an MLP. The text passes through "
         "all layers in order.",
         "a layer is one block of the model.",
         "More layers let a model learn harder things."),
    Term("attention", "[attention|self attention|the attention mechanism|self-attention]",
         "**Attention** lets each token look at the tokens before it and pick what matters.",
         "tokens look at earlier tokens.",
         "The meaning of a word depends on the words around it."),
    Term("PagedAttention", "[PagedAttention|paged attention]",
         "**PagedAttention** stores the KV cache in small blocks, like pages of memory. Many "
         "requests can then share the memory with little waste.",
         "the KV cache in small blocks.",
         "It wastes less memory when many requests run at once."),
    Term("the prefix cache", "[the prefix cache|prefix caching|a prefix cache|prefix caches]",
         "The **prefix cache** keeps the KV cache of earlier prompts. A prompt that starts the "
         "same way is then read much faster.",
         "it reuses the work of earlier prompts.",
         "In a chat each prompt starts with the whole chat so far."),
    Term("the chat template", "[a chat template|the chat template|chat templates]",
         "A **chat template** turns a chat into one text with marks for who speaks. Each model "
         "brings its own.",
         "it turns a chat into one text.",
         "A model answers well only in the form it was trained on."),
    Term("the system prompt", "[a system prompt|the system prompt|system prompts|a system message]",
         "A **system prompt** is a first message that tells the model how to behave. In the chat "
         "you set it with `\\system`.",
         "a first message with rules for the model.",
         "It sets the tone for the whole chat."),
    Term("the context length",
         "[the context length|context length|the context window|a context window|context size]",
         "The **context length** is how many tokens a model can see at once, prompt and reply "
         "together. A longer context needs a larger KV cache.",
         "how many tokens the model can see.",
         "Text beyond it is lost to the model."),
    Term("temperature",
         "[temperature|the temperature|sampling temperature|the temperature setting]",
         "**Temperature** sets how random the next token is. Low values are careful, high values "
         "are bold, and 0 always takes the best token.",
         "it sets how random the reply is.",
         "Some tasks need care and some need ideas."),
    Term("top-k", "[top-k|top k|top-k sampling|topk]",
         "**Top-k** keeps only the k most likely tokens before one is drawn.",
         "only the k best tokens stay.",
         "Very unlikely tokens spoil a reply."),
    Term("top-p", "[top-p|top p|top-p sampling|nucleus sampling|topp]",
         "**Top-p** keeps the smallest set of tokens whose probabilities add up to p.",
         "only the most likely tokens up to p stay.",
         "It keeps few tokens when the model is sure and many when it is not."),
    Term("min-p", "[min-p|min p|min-p sampling]",
         "**Min-p** drops every token that is much less likely than the best one.",
         "very unlikely tokens are dropped.",
         "It adapts to how sure the model is."),
    Term("sampling", "[sampling|token sampling|sampling tokens]",
         "**Sampling** draws the next token from the model's probabilities. Temperature, top-k, "
         "top-p and min-p shape it.",
         "it draws the next token.",
         "Always taking the best token can be dull."),
    Term("greedy decoding", "[greedy decoding|greedy search|greedy]",
         "**Greedy decoding** always takes the most likely token. It is the same as temperature "
         "0.",
         "always the most likely token.",
         "It gives the same reply each time."),
    Term("the seed", "[a seed|the seed|a random seed|random seeds]",
         "A **seed** starts the random numbers of sampling. The same seed gives the same reply "
         "again.",
         "the same seed gives the same reply.",
         "It makes a random reply repeatable."),
    Term("embeddings", "[embeddings|an embedding|embedding|token embeddings]",
         "**Embeddings** are lists of numbers that stand for tokens. Tokens with a like meaning "
         "have like numbers.",
         "numbers that stand for tokens.",
         "A model can only work with numbers."),
    Term("GPUs", "[a GPU|GPUs|a graphics card|the GPU|GPU]",
         "A **GPU** is a chip that does many calculations at once. Its fast memory makes models "
         "run fast.",
         "a chip for many calculations at once.",
         "A model is mostly large sums, and these run side by side."),
    Term("VRAM", "[VRAM|GPU memory|video memory|video RAM]",
         "**VRAM** is the memory of a GPU. The weights and the KV cache have to fit into it, or "
         "some layers go to the CPU.",
         "the memory of a GPU.",
         "It decides how large a model may be."),
    Term("CPUs", "[a CPU|CPUs|the CPU|a processor|CPU]",
         "A **CPU** is the main processor of a computer. It can run every model that fits into "
         "memory, but more slowly than a GPU.",
         "the main processor of a computer.",
         "Every computer has one, so every computer can run a small model."),
    Term("memory bandwidth", "[memory bandwidth|bandwidth]",
         "**Memory bandwidth** is how many bytes a device reads in a second. For each token all "
         "weights are read once, so it limits the speed of decode.",
         "bytes read in a second.",
         "Decode can not be faster than the weights can be read."),
    Term("large language models",
         "[an LLM|LLMs|a large language model|large language models|a language model|LLM]",
         "A **large language model** predicts the next token of a text. Word by word this gives "
         "whole answers.",
         "it predicts the next token.",
         "Much of what people write can be answered by good guesses of the next word."),
    Term("weights", "[weights|the weights|model weights|parameters|a parameter|model parameters]",
         "**Weights**, or parameters, are the numbers that a model learned in training. I have "
         "about 2 million of them.",
         "the numbers that a model learned.",
         "All that a model knows is in them."),
    Term("bf16", "[bf16|bfloat16|the bf16 format]",
         "**bf16** is a number format with 16 bits. It has the range of a 32 bit number, but fewer "
         "digits.",
         "numbers with 16 bits.",
         "It halves the memory and hardly changes the replies."),
    Term("q4k", "[q4k|q4_k|the q4k format|Q4_K quantization]",
         "**q4k** is a quantization with about 4.5 bits a weight. It works on blocks of 256 "
         "weights with small scales.",
         "about 4.5 bits a weight.",
         "It is a good balance of size and accuracy."),
    Term("q8_0", "[q8_0|the q8_0 format|Q8_0 quantization]",
         "**q8_0** is a quantization with 8.5 bits a weight. It works on blocks of 32 weights and "
         "is almost as good as 16 bits.",
         "8.5 bits a weight.",
         "It halves the size at almost no loss."),
    Term("batches", "[a batch|batching|batches|the batch size|batch size]",
         "A **batch** is a group of sequences that run together. It makes better use of the "
         "device than one after another.",
         "sequences that run together.",
         "The weights are read once for all of them."),
    Term("activations", "[activations|activation memory|an activation]",
         "**Activations** are the numbers that flow between the layers. They need memory as well, "
         "most of all in prefill.",
         "the numbers between the layers.",
         "A plan has to leave room for them."),
    Term("perplexity", "[perplexity|the perplexity]",
         "**Perplexity** measures how surprised a model is by a text. Lower is better.",
         "how surprised a model is.",
         "It shows how much a quantization hurts."),
    Term("the time to first token", "[the time to first token|time to first token|TTFT]",
         "The **time to first token** is how long you wait before a reply starts. It is mostly "
         "prefill.",
         "the wait before the reply starts.",
         "People notice the wait before the first word most."),
    Term("tokens per second", "[tokens per second|tokens/s|throughput]",
         "**Tokens per second** tell how fast a model reads or writes. After each reply `mrs` "
         "shows both.",
         "the speed of a model.",
         "It shows which setting is the fastest."),
    Term("mixture of experts", "[a mixture of experts|mixture of experts|MoE|an MoE model]",
         "A **mixture of experts** has many small networks in a layer and uses only a few for "
         "each token.",
         "only a few experts work for each token.",
         "The model knows more at the same cost for each token."),
    Term("RoPE", "[RoPE|rotary embeddings|rotary position embeddings]",
         "**RoPE** tells a model where each token stands: it turns the queries and keys by an "
         "angle that grows with the position.",
         "it marks the place of each token.",
         "Without it a model could not see the order of the words."),
    Term("grouped-query attention", "[grouped-query attention|grouped query attention|GQA]",
         "**Grouped-query attention** lets several query heads share one key and value head.",
         "heads share keys and values.",
         "It makes the KV cache much smaller."),
    Term("logits", "[logits|the logits|a logit]",
         "**Logits** are the scores that a model gives to every possible next token.",
         "the scores of the next tokens.",
         "Sampling picks the next token from them."),
    Term("transformers", "[a transformer|the transformer architecture|transformers]",
         "A **transformer** is a network made of layers with attention and an MLP. Almost all "
         "language models are built this way.",
         "a network with attention.",
         "It can be trained on much text at once."),
    Term("inference", "[inference|LLM inference|model inference]",
         "**Inference** means running a trained model to get answers. It has two phases: prefill "
         "and decode.",
         "running a trained model.",
         "It is what you do with a model after training."),
    Term("training", "[training|model training|training a model]",
         "**Training** shows a model many texts and changes its weights a little each time. I was "
         "trained on a CPU in under an hour.",
         "a model learns its weights.",
         "Before training a model knows nothing."),
    Term("the hub", "[the hub|the Hugging Face hub|Hugging Face]",
         "The **Hugging Face hub** is a site where people share models. `mrs` can load them by "
         "name, for example `plain -m` and the id.",
         "a site where people share models.",
         "There are very many models for every task."),
    Term("offloading", "[offloading|CPU offloading|offload]",
         "**Offloading** puts some layers on the CPU when the GPU is too small. It works, but the "
         "replies come more slowly.",
         "some layers go to the CPU.",
         "A slow model is better than none."),
    Term("mrs", "[mrs|the mrs program|this program|this tool]",
         "**mrs** is a program that plans, loads and runs language models on the devices that you "
         "have. You can start with `mrs -i plain -m demo`.",
         "it runs language models on your devices.",
         "It tells you where every byte goes before anything is loaded."),
    Term("mrs plan", "[mrs plan|`mrs plan`|the plan command|a plan]",
         "**mrs plan** shows where every byte of a model would go before anything is loaded. With "
         "`--dry-run` it reads only the headers.",
         "it shows where a model would go.",
         "You see at once if a model fits, and what to change if not."),
)  # fmt: skip
