/* What the headers of a JSON body must say, and its text. */

import { isUtf8 } from 'node:buffer'
import { HttpError } from '../errors.ts'
import type { Exchange } from '../http/exchange.ts'

const TOKEN = "[!#$%&'*+.^_`|~0-9A-Za-z-]+"
/**
 * RFC 9110 §8.3.1: the type, then parameters whose value is a token or a quoted string. A text can
 * match in one way at most, so a mismatch takes linear time.
 */
const MEDIA_TYPE = new RegExp(
  `^application/json((?:[ \\t]*;(?:[ \\t]*${TOKEN}=(?:${TOKEN}|"(?:[^"\\\\]|\\\\.)*"))?)*)[ \\t]*$`,
  'i',
)
const CHARSET = new RegExp(`;[ \\t]*charset=(${TOKEN}|"[^"]*")`, 'gi')
/** Characters of a media type: more of them could take 300 µs. */
const MEDIA_TYPE_MAX = 256
/** Characters of a header in a message. */
const SHOWN_MAX = 100
const BYTE_ORDER_MARK = '\ufeff'

/** @throws HttpError if the headers announce anything but JSON in UTF-8, or too many bytes. */
export function checkBodyHeaders(exchange: Exchange, maxBodyBytes: number): void {
  const [type, second] = exchange.headers('content-type')
  if (second !== undefined) throw new HttpError('contentTypeRepeated')
  if (type === undefined || !isJson(type))
    throw new HttpError('mediaTypeUnsupported', [], undefined, sentenceOf(type))
  const encodings = exchange.lists('content-encoding')
  // "gzip, chunked" is a coding of the same bytes.
  const codings = exchange.headers('transfer-encoding')
  const isEncoded = encodings.some((coding) => coding.toLowerCase() !== 'identity')
  if (isEncoded || codings.some((coding) => coding.toLowerCase() !== 'chunked')) {
    const detail = sentenceOf([...encodings, ...codings].join(', '))
    const accept = ['Accept-Encoding', 'identity']
    throw new HttpError('contentEncodingUnsupported', accept, undefined, detail)
  }
  if (exchange.body.contentLength > maxBodyBytes) throw new HttpError('bodyTooLarge')
}

/** Says what came. */
function sentenceOf(value: string | undefined): string {
  if (value === undefined) return 'There is none.'
  return `It is ${JSON.stringify(value.slice(0, SHOWN_MAX))}.`
}

function isJson(contentType: string): boolean {
  // The form that nearly every client sends.
  if (contentType === 'application/json') return true
  if (contentType.length > MEDIA_TYPE_MAX) return false
  const parameters = MEDIA_TYPE.exec(contentType)?.[1]
  if (parameters === undefined) return false
  return [...parameters.matchAll(CHARSET)].every(([, name = '']) => /^"?utf-?8"?$/i.test(name))
}

/** @throws HttpError `bodyNotUtf8`. */
export function decodeBody(bytes: Buffer): string {
  const text = bytes.toString('utf8')
  if (!isUtf8(bytes) || text.startsWith(BYTE_ORDER_MARK)) throw new HttpError('bodyNotUtf8')
  return text
}
