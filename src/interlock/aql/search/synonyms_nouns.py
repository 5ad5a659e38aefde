"""What things of every day are called, in classes of words that mean nearly the same.

General English and the English of computers, written from knowledge of the language. One class a
line; `_` joins the words of a phrase. A word may be in several classes.
"""

from __future__ import annotations

from typing import Final

NOUNS: Final = """
email mail e_mail message letter note
email inbox mailbox
message note text dm chat msg
direct_message dm private_message
mail newsletter campaign
attachment enclosure file
draft unsent
thread conversation discussion chat
conversation chat dialogue talk
channel room group chat
channel workspace team
recipient addressee
sender from
subject topic title headline
signature sign
comment remark note reply feedback
reaction emoji thumbs_up
emoji smiley
announcement news
notification alert push reminder
reminder alert alarm
alarm alert alert_rule
incident outage downtime alert
on_call oncall rota rotation
picture image photograph photo screenshot snapshot graphic drawing
image icon logo illustration
image avatar profile_picture
thumbnail preview
video movie film clip recording
movie film cinema
series show tv television episode
audio sound recording voice music
voice speech tts text_to_speech
speech audio transcribe speech_to_text
song track music tune
music playlist album
playlist mix queue
artist band musician singer
podcast episode show
transcribe caption subtitle
user account member person people profile
user customer
member user people
person contact people human
people contact user
contact person address_book
contact phone email
profile account bio
account user profile
team group department
team member colleague coworker
colleague coworker teammate user
group team
organisation company workspace
company business firm organisation customer
customer client buyer account
lead prospect deal
deal opportunity sale
sale revenue order
revenue income money earnings
pipeline deal
crm customer contact
vendor supplier
employee staff worker
manager boss
candidate applicant
job vacancy position
money payment fund cash
money balance account
payment charge transaction
payment money invoice
transaction payment transfer
transaction statement
invoice bill receipt
bill invoice
receipt invoice
refund return
subscribe plan membership
price cost rate amount quote
price_list product
cost expense spend price
expense spend
coupon discount promo voucher
discount coupon promotion
product item goods merchandise article
product catalog
catalog inventory
inventory stock
stock share equity ticker
stock quote price
share stock
cart basket
order purchase
shipment delivery package parcel
delivery shipment
store shop
balance account
bank account
currency exchange_rate
exchange_rate currency conversion
crypto bitcoin cryptocurrency coin token
wallet address
tax vat
budget limit
dispute chargeback
payout transfer
meeting event appointment call
meeting calendar
event appointment calendar
appointment calendar event
calendar schedule agenda diary
schedule calendar plan timetable
availability free_busy slot
availability free
slot time
date day time
time clock hour
time_zone timezone time
timezone time
duration length
holiday vacation
birthday date
weather forecast temperature rain
forecast weather
rain weather
temperature weather
climate weather
location place position coordinate
place location venue address
place poi restaurant
restaurant place food
city town place
country nation
address location
coordinate latitude longitude lat lng
geocode address coordinate
route direction way path
direction route navigation
distance far length
traffic route
elevation height altitude
hotel accommodation stay airbnb lodging
listing accommodation
flight plane airline
train railway rail
ticket booking reservation
booking reservation
trip travel journey itinerary
station stop
recipe cook food meal
food nutrition
health medical
drug medicine medication
disease condition illness
clinical_trial study
paper article publication study research
research study paper
journal article
citation reference
author writer
book reading
news article headline story
article post blog
blog post article
post tweet status
tweet post
social_media post tweet
follower fan
comment reply
hashtag tag
feed timeline
search result
search_engine web_search google
web_search internet online search
internet web online
online web
fact knowledge information
knowledge memory fact
knowledge_graph memory entity relation
entity node
relation relationship edge link
observation fact note
question query
answer response
out_of_office vacation absence holiday
freebusy availability free_busy busy
reaction emoji like
worklog time_entry timesheet time_log
watcher follower subscriber
attendee guest participant invitee
host organizer
rsvp attendance invitation
folder label
spam junk
voicemail call
sms text_message text
phone_call call
broadcast announcement campaign
audience segment list
landing_page page
lesson course class training
student learner pupil
teacher instructor
homework assignment
grade mark score
flashcard card
dictionary definition word
language translate
grocery product
recipe ingredient
meal dish
calorie nutrition
workout activity exercise training
run activity ride
heart_rate activity
gear equipment bike
club group
medicine drug
patient person
symptom disease
property apartment house
rent lease
mortgage loan
loan credit
tax_rate tax
quote estimate offer
contract agreement
credit_note refund
journal_entry transaction ledger
bank_transaction payment transaction
portfolio position holding
position holding
trade order
market stock
dividend stock
asset media image file
media image video asset photo
media_library asset
gallery album photo
watermark overlay
background image
caption text
avatar image
pin_map map
path_map route map
organization_chart hierarchy organigram
word_cloud word
histogram distribution
scatter correlation
funnel conversion
"""
