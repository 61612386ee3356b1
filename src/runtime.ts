/* Which runtimes the service runs on. It imports nothing: an old Node must get as far as this. */

/**
 * As `engines` in package.json says. The parser of Node 20 before 20.19.2 reads lines as headers
 * that other programs read otherwise, so a client could smuggle requests (CVE-2025-23167). The
 * first versions of Node 22 and 23 do not start the service.
 */
const NEEDED = 'Node 20.19.2 or later, 22.11.0 or later, or 24 or later is needed'
/** They too report a version of Node, but their own `node:http` keeps none of our promises. */
const OTHERS = ['deno', 'bun']

/** Why this runtime cannot run the service, and the exit status; undefined if it can. */
export function runtimeRefusal({ versions } = process) {
  const other = OTHERS.find((name) => versions[name] !== undefined)
  if (other !== undefined)
    return { status: 1, message: `this is ${other} ${versions[other]}, not Node: ${NEEDED}` }
  const [major = 0, minor = 0, patch = 0] = versions.node.split('.').map(Number)
  const is20 = major === 20 && (minor > 19 || (minor === 19 && patch >= 2))
  const is22 = major === 22 && minor >= 11
  if (is20 || is22 || major >= 24) return undefined
  return { status: 2, message: `${NEEDED}, and this is ${versions.node}` }
}
