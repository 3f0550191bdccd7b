// llama.cpp through node-llama-cpp: a list of prompts on stdin, a JSON line per generation on stdout.
//
//     node in_llama.mjs MODULES TARGET.gguf DRAFT.gguf TOKENS THREADS ONLY < prompts.json
//
// A prompt is {kind, number, ids}. Passes of both models are counted where their tokens are decoded.
// A draft model with another vocabulary is refused by the library; its reason is a line too. ONLY is
// a regular expression: ways whose names match, and plain decoding, run.
import path from "node:path";
import {pathToFileURL} from "node:url";

const [modules, targetFile, draftFile, tokens, threads, only] = process.argv.slice(2);
const entry = path.join(modules, "node_modules/node-llama-cpp/dist/index.js");
const {getLlama, InputLookupTokenPredictor, DraftSequenceTokenPredictor} =
    await import(pathToFileURL(entry));
const llama = await getLlama({gpu: false, build: "never", logLevel: "error", maxThreads: +threads});

async function open(file) {
    const model = await llama.loadModel({modelPath: file});
    return model.createContext({contextSize: 1024, threads: +threads});
}

const context = await open(targetFile);
const draftSequence = (await open(draftFile)).getSequence();
const decodeDraft = draftSequence._decodeTokens.bind(draftSequence);
let draftPasses = 0;
draftSequence._decodeTokens = (...given) => (draftPasses++, decodeDraft(...given));

function lookup(max) {
    return (ids) => {
        const predictor = new InputLookupTokenPredictor({predictionLength: {max}});
        predictor.updateInputTokens(ids);
        return predictor;
    };
}

const conditions = {
    "plain": () => undefined,
    "input lookup, 3 ids": lookup(3),
    "input lookup, 10 ids": lookup(10),
    // As it is, the target does not wait for a draft: one that is late is not verified.
    "draft model": () => new DraftSequenceTokenPredictor(draftSequence),
    "draft model, 4 ids": () =>
        new DraftSequenceTokenPredictor(draftSequence, {minTokens: 4, maxTokens: 4, minConfidence: 0}),
};
const wanted = Object.keys(conditions).filter((name) => name === "plain" || RegExp(only).test(name));

async function run(name, ids, most) {
    const tokenPredictor = conditions[name](ids);
    const sequence = context.getSequence(tokenPredictor ? {tokenPredictor} : {});
    const emitted = [], began = performance.now(), decode = sequence._decodeTokens.bind(sequence);
    let passes = 0;
    draftPasses = 0;
    sequence._decodeTokens = (...given) => (passes++, decode(...given));
    try {
        for await (const token of sequence.evaluate(ids, {temperature: 0})) {
            emitted.push(token);
            if (emitted.length === most) break;
        }
        return {ids: emitted, passes, draft_passes: draftPasses, seconds: (performance.now() - began) / 1e3};
    } catch (error) {
        return {error: error.message};
    } finally {
        sequence.dispose();
    }
}

let given = "";
for await (const part of process.stdin) given += part;
const prompts = JSON.parse(given);
for (const name of wanted) await run(name, prompts[0].ids, 8); // warm up
const broken = new Set();
for (const [turn, {kind, number, ids}] of prompts.entries()) {
    const first = turn % wanted.length;
    for (const name of [...wanted.slice(first), ...wanted.slice(0, first)]) {
        if (broken.has(name)) continue;
        const found = await run(name, ids, +tokens);
        if (found.error) broken.add(name);
        console.log(JSON.stringify({kind, number, condition: name, ...found}));
    }
}
process.exit(0);
