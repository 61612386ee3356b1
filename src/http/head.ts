import { randomUUID } from 'node:crypto'

/** What the service looks at of a request's header fields; a list holds every line of that name. */
export interface Head {
  readonly hosts: readonly string[]
  readonly authorization: readonly string[]
  readonly contentTypes: readonly string[]
  readonly contentEncodings: readonly string[]
  readonly expectations: readonly string[]
  readonly requestIds: readonly string[]
  /** Undefined without a Content-Length: then there is no body, or a chunked one. Node has checked that it is a number. */
  readonly contentLengthBytes: number | undefined
  readonly chunked: boolean
  /** Whether another protocol is asked for; the service knows none. */
  readonly upgrade: boolean
}

const NONE: string[] = []

/** Most requests have no line of most names: they share one empty list. */
function add(values: string[], value: string): string[] {
  if (values === NONE) return [value]
  values.push(value)
  return values
}

/** Reads `rawHeaders`, where names and values alternate: Node's own `headers` would hide a line that stands twice. */
export function readHead(rawHeaders: readonly string[]): Head {
  const head = {
    hosts: NONE,
    authorization: NONE,
    contentTypes: NONE,
    contentEncodings: NONE,
    expectations: NONE,
    requestIds: NONE,
    contentLengthBytes: undefined as number | undefined,
    chunked: false,
    upgrade: false,
  }
  for (let i = 0; i + 1 < rawHeaders.length; i += 2) {
    const value = rawHeaders[i + 1] ?? ''
    switch (rawHeaders[i]?.toLowerCase()) {
      case 'host':
        head.hosts = add(head.hosts, value)
        break
      case 'authorization':
        head.authorization = add(head.authorization, value)
        break
      case 'content-type':
        head.contentTypes = add(head.contentTypes, value)
        break
      case 'content-encoding':
        head.contentEncodings = add(head.contentEncodings, value)
        break
      case 'expect':
        head.expectations = add(head.expectations, value)
        break
      case 'request-id':
        head.requestIds = add(head.requestIds, value)
        break
      case 'content-length':
        head.contentLengthBytes = Number(value)
        break
      case 'transfer-encoding':
        head.chunked = true
        // What is coded besides ("gzip, chunked") is as unreadable as it would be by Content-Encoding.
        if (value.toLowerCase() !== 'chunked') head.contentEncodings = add(head.contentEncodings, value)
        break
      case 'upgrade':
        head.upgrade = true
        break
      default:
    }
  }
  return head
}

/** The caller's own id of a request, where it sent a usable one, else a new one. */
export function requestIdOf({ requestIds }: Head): string {
  const [given, second] = requestIds
  return given !== undefined && second === undefined && /^[\x21-\x7e]{1,128}$/.test(given) ? given : randomUUID()
}
