// Opens pages in headless Chromium, wide and narrow, light and dark, and says what is wrong with them.
//
//   node check.mjs DIRECTORY PAGE...
//
// Each page needs figures that have a size and are drawn, stays within the window, asks for nothing, and
// reports no error. A picture of each goes to the directory. Faults go to standard error, a line each;
// the status is 1 when there is one.

import { basename, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const WIDTHS = [1280, 400];
const SCHEMES = ["light", "dark"];

/** What is wrong with the page that is open: runs within it. */
function faultsOfPage() {
    const faults = [];
    const figures = [...document.querySelectorAll("svg")];
    if (figures.length === 0) faults.push("no figure");
    figures.forEach((figure, index) => {
        const { width, height } = figure.getBoundingClientRect();
        if (!(width > 0 && height > 0)) faults.push(`figure ${index}: ${width} x ${height} pixels`);
        const drawn = [...figure.querySelectorAll("polyline, path, rect, circle")];
        const isSeen = (shape) => {
            const box = shape.getBoundingClientRect();
            return box.width > 0 || box.height > 0;
        };
        if (!drawn.some(isSeen)) faults.push(`figure ${index}: nothing is drawn`);
    });
    const { scrollWidth, clientWidth } = document.documentElement;
    if (scrollWidth > clientWidth) faults.push(`${scrollWidth} pixels wide in a window of ${clientWidth}`);
    if (!document.body.innerText.trim()) faults.push("no text");
    return faults;
}

async function check(browser, directory, file, width, scheme) {
    const page = await browser.newPage({ viewport: { width, height: 900 }, colorScheme: scheme });
    const faults = [];
    const address = pathToFileURL(resolve(file)).href;
    page.on("console", (message) => {
        if (["error", "warning"].includes(message.type())) faults.push(`console: ${message.text()}`);
    });
    page.on("pageerror", (error) => faults.push(`script: ${error.message}`));
    page.on("requestfailed", (request) => faults.push(`failed request: ${request.url()}`));
    page.on("request", (request) => {
        const isOwn = request.url() === address || request.url().startsWith("data:");
        if (!isOwn) faults.push(`asks for ${request.url()}`);
    });
    await page.goto(address, { waitUntil: "load" });
    faults.push(...(await page.evaluate(faultsOfPage)));
    const picture = `${basename(file, ".html")}-${width}-${scheme}.png`;
    await page.screenshot({ path: join(directory, picture), fullPage: true });
    await page.close();
    return faults.map((fault) => `${basename(file)} at ${width} pixels, ${scheme}: ${fault}`);
}

const [directory, ...files] = process.argv.slice(2);
const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
// In a container as root, Chromium's sandbox cannot be.
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const faults = [];
try {
    for (const file of files)
        for (const width of WIDTHS)
            for (const scheme of SCHEMES) faults.push(...(await check(browser, directory, file, width, scheme)));
} finally {
    await browser.close();
}
for (const fault of faults) console.error(fault);
process.exitCode = faults.length > 0 ? 1 : 0;
